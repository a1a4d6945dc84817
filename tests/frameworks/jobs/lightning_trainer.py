"""Lightning's Trainer: rank 1 loads features for ever, the others are in the backward pass."""

from __future__ import annotations

import os
import sys
import time

import lightning
import torch


class Features(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.randn(8)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, batch_idx):
        if batch_idx == 2 and self.global_rank == 1:
            load_features()
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def load_features():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


if __name__ == "__main__":
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy=sys.argv[1],
        enable_progress_bar=False,
        logger=False,
        enable_checkpointing=False,
    ).fit(Model(), torch.utils.data.DataLoader(Features(), batch_size=4))
