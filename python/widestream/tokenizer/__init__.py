"""Text to token ids and back, with the ids of the released libraries: docs/tokenizer.md.

``Tokenizer`` runs in C++ for byte-level BPE, and through the ``tokenizers`` package, slower, for SentencePiece-style
BPE and Unigram (``Tokenizer.backend`` says which). ``tokenize_files`` makes Megatron data sets.
"""

from widestream.tokenizer.decoder import StreamDecoder
from widestream.tokenizer.files import TokenizeProgress, TokenizeSummary, tokenize_files
from widestream.tokenizer.tokenizer import EncodedBatch, EncodedText, Tokenizer

__all__ = [
    "EncodedBatch",
    "EncodedText",
    "StreamDecoder",
    "TokenizeProgress",
    "TokenizeSummary",
    "Tokenizer",
    "tokenize_files",
]
