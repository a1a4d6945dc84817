"""Lines about verdicts, and where their evidence leads."""
