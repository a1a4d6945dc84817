"""Stacks by py-spy, the lines of code behind them, and strace."""
