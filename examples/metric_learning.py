"""Together with pytorch-metric-learning: our plans on a dataset of one's own, its losses and miners, ours with its."""

import torch
from made_up import Small, store, textures
from pytorch_metric_learning import losses as their_losses
from pytorch_metric_learning import miners as their_miners
from torch.utils.data import DataLoader, TensorDataset

from hardmine import Batch, list_entries, losses, miners, paired, samplers, tuples_from_pml


def main(folder, steps=60):
    entries, network = list_entries(store(folder), "train", None), Small()
    options = samplers.get("class-balanced").Options(classes=8, per_class=4)
    sampler = samplers.get("class-balanced")(entries, options).between(0, steps)
    own = TensorDataset(torch.from_numpy(textures()[0]).float() / 255)  # item i is row i of the store
    theirs, our_loss = their_losses.TripletMarginLoss(margin=0.2), losses.get("triplet")(margin=0.2)
    their_miner, our_miner = their_miners.BatchHardMiner(), miners.get("semi-hard")()
    optimizer, values = torch.optim.Adam(network.parameters(), 1e-3), []
    for (pixels,), plan in paired(DataLoader(own, batch_sampler=sampler)):
        x, labels = network(pixels), torch.from_numpy(plan.labels)
        batch = Batch(x, labels)
        value = theirs(x, labels, our_miner(batch).triplets)  # their loss on our tuples
        value = value + our_loss(batch, tuples_from_pml(their_miner(x, labels), batch)).value  # ours on theirs
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values
