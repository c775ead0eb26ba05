"""The data loader: batches of a job's stream, in this process."""

from widestream.loader.batch import Batch, Microbatch, Span
from widestream.loader.data_loader import DataLoader

__all__ = ["Batch", "DataLoader", "Microbatch", "Span"]
