"""AdaSample's plans from a mining store in a plain training loop of one's own."""

import torch
from made_up import Small, store

from hardmine import Batch, StoredDistances, list_entries, loader, losses, mine, miners, samplers
from hardmine.pipeline.pixels import prepare


def main(folder, steps=60, mine_every=20):
    patches, network = store(folder), Small()
    entries = list_entries(patches, "train", None)
    sampler = samplers.get("adasample")(entries, pairs=8, lag=1)
    miner, loss = miners.get("hardest-in-batch")(), losses.get("triplet-margin")()
    optimizer, values = torch.optim.Adam(network.parameters(), 1e-3), []
    for first in range(0, steps, mine_every):
        found = mine(patches, folder / "mining", network, split="train", derive=("pairs",), step=first).round
        sampler.distances = StoredDistances(*found.pair_distance(), entries.offsets)
        for pixels, plan in loader(patches, sampler.between(first, first + mine_every), workers=0, depth=0):
            descriptors = network(prepare(pixels, network.side))
            batch = Batch(descriptors, torch.from_numpy(plan.labels), plan.pairs)
            output = loss(batch, miner(batch), torch.from_numpy(plan.weight))
            optimizer.zero_grad()
            output.value.backward()
            optimizer.step()
            values.append(float(output.per_item.mean()))
            sampler.record(plan.step, values[-1])
    return values
