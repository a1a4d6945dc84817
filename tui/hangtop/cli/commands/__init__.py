"""Commands that observe a job: one module per command, imported when it runs."""
