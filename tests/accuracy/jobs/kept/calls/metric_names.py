"""A classifier; once per log interval the mean of all metrics is taken over the ranks."""

import argparse
import logging
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

log = logging.getLogger("train")


class MetricBuffer:
    """Running sums by name; `synchronize` averages them over the ranks."""

    def __init__(self):
        self.sums, self.counts = {}, {}

    def update(self, **values):
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.counts[name] = self.counts.get(name, 0) + 1

    def synchronize(self):
        names = sorted(self.sums)
        packed = torch.tensor([self.sums[n] / self.counts[n] for n in names])
        dist.all_reduce(packed)
        packed /= dist.get_world_size()
        self.sums.clear()
        self.counts.clear()
        return dict(zip(names, packed.tolist()))


class Throughput:
    """Samples a second; known after the first few steps."""

    def __init__(self, skip):
        self.skip, self.seen, self.began = skip, 0, None

    def tick(self, n):
        self.seen += 1
        if self.seen == self.skip:
            self.began = time.monotonic()
        return self.seen > self.skip

    def rate(self, n):
        return n * (self.seen - self.skip) / (time.monotonic() - self.began)


class Trainer:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.Linear(64, 5)
        )
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.metrics = MetricBuffer()
        self.throughput = Throughput(skip=args.skip)

    def sync_gradients(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def train_step(self):
        x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        self.opt.zero_grad()
        loss.backward()
        self.sync_gradients()
        self.opt.step()
        hits = (logits.argmax(1) == y).float().mean()
        self.metrics.update(loss=loss, accuracy=hits, norm=self.model[0].weight.norm())
        if self.throughput.tick(32) and self.rank == 0:
            self.metrics.update(
                samples_per_s=self.throughput.rate(32), lr=self.opt.param_groups[0]["lr"]
            )

    def fit(self):
        for step in range(self.args.steps):
            self.train_step()
            if self.rank == 0:
                log.info("step %d done", step)
            if (step + 1) % self.args.log_every == 0:
                means = self.metrics.synchronize()
                if self.rank == 0:
                    log.info("means %s", {k: round(v, 3) for k, v in means.items()})
            time.sleep(0.15)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--log-every", type=int, default=3)
    parser.add_argument("--skip", type=int, default=6)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
