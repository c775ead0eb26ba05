"""The data loader: batches of a job's stream, in this process."""

from widestream.loader.batch import Batch, Microbatch, Span
from widestream.loader.data_loader import DataLoader
from widestream.loader.place_tree import ClientPlaceTree, Place

__all__ = ["Batch", "ClientPlaceTree", "DataLoader", "Microbatch", "Place", "Span"]
