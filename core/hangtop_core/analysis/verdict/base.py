"""What rules work on and what they give: the case, its subjects, a rule and its hits."""

from __future__ import annotations
