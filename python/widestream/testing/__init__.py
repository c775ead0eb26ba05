"""What a user's own tests need: exact resume of a job, no leak between packed documents, a small corpus.

    from widestream import testing

    def test_my_job_resumes():
        testing.assert_exact_resume(ws.Job.load("job.yaml"))

    def test_my_model_does_not_leak():
        testing.assert_no_leak(model, vocabulary_size=50_257)

Everything raises a plain AssertionError, needs no fixture and no network, and is a pure function of its arguments: it
works under pytest, unittest and hypothesis alike. docs/testing.md explains it.
"""

from widestream.testing.corpus import byte_tokenizer, corpus, small_job, write_corpus
from widestream.testing.leak import assert_no_leak
from widestream.testing.resume import assert_exact_resume

__all__ = [
    "assert_exact_resume",
    "assert_no_leak",
    "byte_tokenizer",
    "corpus",
    "small_job",
    "write_corpus",
]
