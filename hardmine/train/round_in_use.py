"""The round that a run trains from: where the first comes from, when another is due, and how stale it has become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from hardmine.errors import StoreError
from hardmine.mining.mine import mine, rederive
from hardmine.mining.samplers import Sampler
from hardmine.mining.staleness import Embed, Staleness, staleness
from hardmine.store.files import write_atomic
from hardmine.store.fingerprint import content_key, differences
from hardmine.store.patches import PatchStore
from hardmine.store.remote_rounds import FoundRound, fetch_round, find_round
from hardmine.store.rounds import MiningStore, Round
from hardmine.train.log import RunLog
from hardmine.train.networks import Network
from hardmine.train.runs import Run

CHOICE = "start.json"  # in the run's folder: which round of `mining.start` the run began from
_NETWORK = ("network.", "dtype:")  # parts of a key that mining.start_network = "any" lets differ


class RoundInUse:
    """The mined round of a run, for samplers that need one.

    round: None before the first. mined_at: the step that its age counts from. messages: what was stale, one line each.
    A round is looked at, and replaced, at steps that follow from `mined_at` and the recipe alone (`stop`), so a run
    that was stopped anywhere goes on as one that was not. embed: the present network, see `staleness`."""

    def __init__(
        self,
        run: Run,
        store: PatchStore,
        split: str,
        network: Network,
        sampler: Sampler,
        embed: Embed,
        device: torch.device,
    ):
        self.run, self.store, self.split = run, store, split
        self.network, self.embed, self.device = network, embed, device
        self.knobs, self.interval = run.recipe.mining, run.recipe.train.mining_interval
        self.derive = (*("pairs",) * sampler.needs_distances, *("centroids",) * bool(sampler.needs_nearest))
        self.neighbours = max(1, sampler.needs_nearest)
        self.round: Round | None = None
        self.mined_at = 0
        self.messages: list[str] = []
        self._said = False  # whether it was said of this round that it is stale

    def refresh(self, step: int, log: RunLog) -> Round:
        """The round to train from at `step`: the present one, or a new one where that is due.

        Raises StoreError where it is stale and the recipe says to fail; what `find_round`, `fetch_round` and `mine`
        raise."""
        if self.round is None and self.knobs.start is not None:
            return self._start(self.knobs.start, step, log)
        if self.round is not None and self.mined_at >= step // self.interval * self.interval:
            stale = self._look_is_due(step) and self._is_stale(self.round, step, log, still_used=True)
            if not stale or self.knobs.on_stale != "mine":
                return self.round
        elif self.round is not None:
            self._is_stale(self.round, step, log, still_used=False)
        return self._mine(step, log)

    def stop(self, step: int) -> int:
        """The step after `step` at which `refresh` must be called again."""
        looks = [(step // self.interval + 1) * self.interval]
        if self.knobs.staleness_every is not None:
            every = self.knobs.staleness_every
            looks.append(self.mined_at + ((step - self.mined_at) // every + 1) * every)
        if self.knobs.stale_after is not None and step < self.mined_at + self.knobs.stale_after:
            looks.append(self.mined_at + self.knobs.stale_after)
        return min(looks)

    def end(self, step: int, log: RunLog) -> None:
        """Log how stale the round is when the training is over."""
        if self.round is not None:
            self._is_stale(self.round, step, log, still_used=False)

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps."""
        if self.round is None:
            return None
        which = {"number": self.round.number, "key": self.round.attrs["key_hash"], "mined_at": self.mined_at}
        return {**which, "stale_said": self._said, "messages": self.messages}

    def restore(self, state: dict[str, Any] | None, where: Path) -> None:
        """Go back to a `state`, of the checkpoint `where`. Raises MissingError, StoreError where its round is gone."""
        if state is None:
            return
        self.round = MiningStore(self.run.mining).open(state["number"])
        if self.round.attrs["key_hash"] != state["key"]:
            raise StoreError(f"round {self.round.number} of {self.run.mining} is not the one {where} belongs to")
        self.mined_at, self._said, self.messages = state["mined_at"], state["stale_said"], list(state["messages"])

    def prune(self) -> None:
        """Remove the run's rounds but the newest two and the one in use."""
        if self.round is not None:
            MiningStore(self.run.mining).prune(keep=2, pinned={self.round.number})

    def origin(self) -> dict[str, Any] | None:
        """Which foreign round the run began from: its store, number and key."""
        file = self.run.path / CHOICE
        return json.loads(file.read_text()) if file.is_file() else None

    def _mine(self, step: int, log: RunLog) -> Round:
        with log.timed("mining"):
            mined = mine(
                self.store,
                self.run.mining,
                self.network,
                split=self.split,
                views=self.run.recipe.views,
                derive=self.derive,
                neighbours=self.neighbours,
                device=self.device,
                step=step,
            ).round
        self.round, self.mined_at, self._said = mined, step, False
        log.write(step, {"mined_round": mined.number, "spread": mined.attrs["spread"]})
        return mined

    def _start(self, source: str, step: int, log: RunLog) -> Round:
        """Train from a round of `source`, fetched into the run's own mining store, and given what it lacks there. The
        choice is recorded first, so that a killed run goes on with the same round; it needs `source` no more once the
        round is here."""
        with log.timed("fetching"):
            chosen = self.origin()
            found = self._fetched(chosen)
            if found is None:
                there = find_round(source, self.knobs.start_round if chosen is None else chosen["round"])
                if chosen is not None and there.attrs["key_hash"] != chosen["key"]:
                    raise StoreError(f"{there} is another round than the one that {self.run.path} was to begin from")
                self._check_fit(there)
                if chosen is None:
                    chosen = {"store": source, "round": there.number, "key": there.attrs["key_hash"]}
                    write_atomic(self.run.path / CHOICE, json.dumps(chosen, indent=1).encode())
                found = fetch_round(there, self.run.mining)
        with log.timed("mining"):
            derived = rederive(
                self.run.mining, found.number, derive=self.derive, neighbours=self.neighbours, device=self.device
            ).round
        self.round, self.mined_at, self._said = derived, step, False
        log.write(step, {"start_round": derived.number, "spread": derived.attrs["spread"]})
        return derived

    def _fetched(self, chosen: dict[str, Any] | None) -> Round | None:
        """The chosen round where it is in the run's mining store already."""
        if chosen is None:
            return None
        here = MiningStore(self.run.mining)
        same = [r for r in here.rounds() if (r.number, r.attrs["key_hash"]) == (chosen["round"], chosen["key"])]
        return here.open(same[0].number) if same else None

    def _check_fit(self, found: FoundRound) -> None:
        """Raises StoreError where a round is of other data than the run's, or of another network, unasked."""
        views = self.run.recipe.views
        key = content_key(
            network=self.network.identity(),
            views=None if views is None else views.model_dump(mode="json"),
            split=self.split,
            patches=self.store.fingerprint,
        )
        differing = differences(found.attrs["key"], key)
        data = [part for part in differing if not part.startswith(_NETWORK)]
        if data or (differing and self.knobs.start_network == "same"):
            remedy = "mine the run's patch store, split and views, and start from that"
            if not data:
                remedy = (
                    'give mining.start_network = "any" to start from it all the same, or the network it was mined with'
                )
            raise StoreError(f"{found} does not fit this run: {'; '.join(differing)}: {remedy}")

    def _look_is_due(self, step: int) -> bool:
        age, every = step - self.mined_at, self.knobs.staleness_every
        return age > 0 and (age == self.knobs.stale_after or (every is not None and age % every == 0))

    def _is_stale(self, old: Round, step: int, log: RunLog, *, still_used: bool) -> bool:
        """Measure and log how stale the round is; whether it is past a limit. Age is one while it is still used."""
        age, anchors, knobs = step - self.mined_at, self.knobs.staleness_anchors, self.knobs
        found = Staleness(age, None, 0)
        if anchors:
            found = staleness(old, self.embed, age, anchors=anchors, device=self.device)
        reasons = []
        if still_used and knobs.stale_after is not None and age >= knobs.stale_after:
            reasons.append(f"{age} steps old (stale_after {knobs.stale_after})")
        if found.still_hard is not None and found.still_hard < (knobs.min_still_hard or 0):
            share, least = 100 * found.still_hard, knobs.min_still_hard
            reasons.append(f"{share:.0f} % of its negatives are still hard (min_still_hard {least:g})")
        log.write(step, found.scalars() | ({"round_stale": float(bool(reasons))} if knobs.has_limits else {}))
        if not reasons:
            return False
        message = f"step {step}: round {old.number} is stale: {', '.join(reasons)}"
        if still_used and knobs.on_stale == "fail":
            raise StoreError(
                f"{message}. The run goes on from its last checkpoint with --set mining.on_stale=warn; or start a run "
                'that mines more often (train.mine_every), or at once (mining.on_stale = "mine")'
            )
        if not self._said:
            self._said = True
            self.messages.append(message)
        return True
