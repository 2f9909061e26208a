"""Every decoder takes its corpus, and a few mutations of it; the long form is `make fuzz`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from decoders import DECODERS
from mutation import CORPUS, Mutation, load_corpus


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_refuses_bad_input_only_in_its_own_ways(decoder: str) -> None:
    corpus = load_corpus(decoder)
    for data in corpus:
        DECODERS[decoder](data)
    for data in Mutation(corpus, 1000).inputs(0):
        DECODERS[decoder](data)


def test_an_input_depends_on_its_number_alone() -> None:
    corpus = load_corpus("nsq")
    some = Mutation(corpus, 50).inputs(100)

    assert some[7] == Mutation(corpus).inputs(107)[0]
    assert len(set(some)) > 40
    assert not set(some) <= set(corpus)


def test_every_corpus_has_a_decoder() -> None:
    assert {path.stem for path in CORPUS.glob("*.txt")} >= set(DECODERS)
