"""The expert layer: route, exchange, compute, exchange back."""

from torch import nn

from moelib.dispatch import TokenDispatcher


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)

    def forward(self, tokens, mask):
        scores = self.gate(tokens).softmax(-1)
        weight, expert = scores.max(-1)
        return weight[mask], expert[mask]


class ExpertLayer(nn.Module):
    def __init__(self, width, group):
        super().__init__()
        self.router = Router(width, group.size())
        self.expert = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )
        self.dispatcher = TokenDispatcher(group)

    def forward(self, tokens, mask):
        weight, expert = self.router(tokens, mask)
        if expert.numel() == 0:  # nothing but padding here
            return tokens
        mine = self.dispatcher.scatter(tokens[mask], expert)
        done = self.dispatcher.gather(self.expert(mine))
        out = tokens.clone()
        out[mask] = done * weight.unsqueeze(-1)
        return out
