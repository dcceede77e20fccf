"""Replay: a spider run over what was stored, on all cores and without a network."""
