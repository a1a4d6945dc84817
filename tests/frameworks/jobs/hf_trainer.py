"""The Trainer of transformers: rank 1 uploads in a callback, the others are in the next step."""

from __future__ import annotations

import os
import tempfile
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return {"input_ids": torch.randint(0, 99, (16,)), "labels": torch.tensor(index % 2)}


class Upload(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 2 and args.process_index == 1:
            push_to_hub()


def push_to_hub():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


def main():
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=100, num_hidden_layers=1, **small)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=20,
        use_cpu=True,
        report_to=[],
        ddp_backend="gloo",
        save_strategy="no",
    )
    Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Sentences(),
        callbacks=[Upload()],
    ).train()


if __name__ == "__main__":
    main()
