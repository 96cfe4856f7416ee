"""hardmine's command line with one process made to fail: python failing_rank.py KIND WORDS..."""

import os
import signal
import sys

import torch

from hardmine import cli
from hardmine.errors import StoreError
from hardmine.mining.samplers import PairSampler
from hardmine.store.patches import PatchStore
from hardmine.train import round_in_use

RANK = int(os.environ["RANK"])
calls = 0


def third(kind):
    """Whether this is process 1's third call."""
    global calls
    calls += 1
    return RANK == 1 and calls == 3


def sabotage(kind):
    gather, plan = PatchStore.gather, PairSampler.plan

    def failing_gather(self, rows):
        if third(kind):
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StoreError("shard 3 cannot be read")
        return gather(self, rows)

    def failing_mine(*arguments, **options):
        raise StoreError("no room for a round")

    if kind in ("store", "killed"):
        PatchStore.gather = failing_gather
    if kind == "mining":  # in process 0 alone, while the other waits for the round
        round_in_use.mine = failing_mine
    if kind == "plans":
        PairSampler.plan = lambda self, step: plan(self, step + 1000 * third(kind))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sabotage(sys.argv.pop(1))
    cli.main()
