"""Every decoder takes its corpus, and a few mutations of it; the long form is `make fuzz`."""

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from decoders import DECODERS
from run import CORPUS, load_corpus, mutated


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_refuses_bad_input_only_in_its_own_ways(decoder: str) -> None:
    corpus = load_corpus(decoder)
    random = Random(1)
    for data in corpus:
        DECODERS[decoder](data)
    for _ in range(300):
        DECODERS[decoder](mutated(random, corpus))


def test_every_corpus_has_a_decoder() -> None:
    assert {path.stem for path in CORPUS.glob("*.txt")} >= set(DECODERS)
