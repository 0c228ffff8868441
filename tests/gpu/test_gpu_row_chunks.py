"""Logits by chunks of rows, on the device: the same cases as in test_row_chunks.py."""

from test_row_chunks import test_a_training_step, test_every_loss_by_rows, test_mixed_precision

__all__ = ["test_a_training_step", "test_every_loss_by_rows", "test_mixed_precision"]
