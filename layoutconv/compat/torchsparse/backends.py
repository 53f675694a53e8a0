"""Switches of TorchSparse that have no effect here."""

benchmark = False
hash_rsv_ratio = 2


def init() -> None:
    """Do nothing: there is nothing to initialize."""
