"""The same sampler inside Lightning, which only sees a loader of (pixels, plan)."""

import lightning
import torch
from made_up import Small, store

from hardmine import Batch, list_entries, loader, losses, miners, samplers
from hardmine.pipeline.pixels import prepare


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network, self.values = Small(), []
        self.miner, self.loss = miners.get("hardest-in-batch")(), losses.get("triplet-margin")()

    def training_step(self, given):
        descriptors = self.network(prepare(given[0], self.network.side))
        batch = Batch(descriptors, torch.from_numpy(given[1].labels), given[1].pairs)
        output = self.loss(batch, self.miner(batch))
        self.values.append(float(output.per_item.mean()))
        return output.value

    def transfer_batch_to_device(self, given, device, dataloader_idx):
        return given[0].to(device), given[1]  # plans stay where they are

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def main(folder, steps=60):
    patches, module = store(folder), Module()
    sampler = samplers.get("random")(list_entries(patches, "train", None), pairs=8).between(0, steps)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(module, loader(patches, sampler, workers=0, depth=0))
    return module.values
