"""Tokens to the ranks of their experts and back."""

import torch
import torch.distributed as dist


class TokenDispatcher:
    def __init__(self, group):
        self.group = group
        self.order = self.sent = self.received = None

    def _exchange(self, rows, out_splits, in_splits):
        out = rows.new_empty(sum(out_splits), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), out_splits, in_splits, group=self.group)
        return out

    @torch.no_grad()
    def scatter(self, tokens, expert):
        self.order = expert.argsort()
        counts = torch.bincount(expert, minlength=self.group.size())
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        self.sent, self.received = counts.tolist(), theirs.tolist()
        return self._exchange(tokens[self.order], self.received, self.sent)

    def gather(self, rows):
        back = self._exchange(rows.detach(), self.sent, self.received)
        return torch.empty_like(back).index_copy(0, self.order, back)
