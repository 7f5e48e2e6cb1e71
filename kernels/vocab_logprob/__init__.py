"""Log-probability and entropy of an LM head over a vocabulary cut over ranks: the chunked path is the only one yet."""

from kernels.vocab_logprob.chunked import vocab_logprob_chunked as vocab_logprob
from kernels.vocab_logprob.reference import vocab_logprob_reference

__all__ = ["vocab_logprob", "vocab_logprob_reference"]
