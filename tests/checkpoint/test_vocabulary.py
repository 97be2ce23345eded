"""A draft model has to speak the target's tokens, padding apart.

Case D19.  Run: pytest tests/checkpoint/test_vocabulary.py
"""

import json

import pytest
from support.tiny_models import byte_tokenizer

from tspec.checkpoint.vocabulary import check_vocabularies
from tspec.core.errors import CheckpointError


def tokens(count: int, start: int = 0) -> dict[str, int]:
    return {f"t{token}": token for token in range(start, start + count)}


def write(folder, vocabulary, added=()):
    folder.mkdir(exist_ok=True)
    extra = [{"id": token, "content": text, "special": True} for text, token in dict(added).items()]
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": extra}))
    return folder


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "target", tmp_path / "draft"


def refusal(target, draft, target_vocab=128, draft_vocab=128) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_vocabularies(target, draft, target_vocab, draft_vocab)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 800
    return message


@pytest.mark.parametrize(
    ("target_vocab", "draft_vocab"), [(128, 120), (120, 128), (128, 128), (151_936, 152_064)]
)
def test_one_tokenizer_under_differently_padded_models(folders, target_vocab, draft_vocab):
    target, draft = (write(folder, tokens(120)) for folder in folders)
    check_vocabularies(target, draft, target_vocab, draft_vocab)


@pytest.mark.parametrize(("target_count", "draft_count"), [(128, 120), (120, 128)])
def test_tokens_that_only_one_of_them_has_are_padding_to_the_other(folders, target_count, draft_count):
    target, draft = write(folders[0], tokens(target_count)), write(folders[1], tokens(draft_count))
    check_vocabularies(target, draft, target_count, draft_count)
    check_vocabularies(target, draft, 128, 128)


def test_two_tokens_swapped_names_both_and_their_texts(folders):
    swapped = tokens(128) | {"t17": 90, "t90": 17}
    message = refusal(write(folders[0], tokens(128)), write(folders[1], swapped))
    assert "2 other than the target's" in message
    assert "17 is 't90', not 't17'; 90 is 't17', not 't90'" in message


def test_a_long_list_is_cut(folders):
    message = refusal(write(folders[0], tokens(128)), write(folders[1], {f"x{n}": n for n in range(128)}))
    assert (
        "128 other" in message
        and "0 is 'x0', not 't0'" in message
        and "…" in message
        and "'x3'" not in message
    )


def test_ids_beyond_either_model_are_not_compared(folders):
    target = write(folders[0], tokens(100) | {"end": 100})
    draft = write(folders[1], tokens(100) | {"other": 100})
    check_vocabularies(target, draft, 128, 100)
    assert "100 is 'other', not 'end'" in refusal(target, draft, 128, 101)


def test_added_tokens_count_and_replace(folders):
    target = write(folders[0], tokens(100), {"<end>": 100})
    assert "100 is '<stop>', not '<end>'" in refusal(target, write(folders[1], tokens(100), {"<stop>": 100}))
    check_vocabularies(target, write(folders[1], tokens(100), {"<end>": 100, "t5": 5}), 128, 128)
    check_vocabularies(target, write(folders[1], tokens(100)), 128, 128)


def test_unigram_lists_have_their_ids_by_place(folders):
    target = write(folders[0], [["a", -1.0], ["b", -2.0]])
    check_vocabularies(target, write(folders[1], {"a": 0, "b": 1}), 2, 2)
    assert "1 is 'c', not 'b'" in refusal(target, write(folders[1], [["a", 0.0], ["c", 0.0]]))


def test_a_real_tokenizer_file_is_read(folders):
    for folder in folders:
        byte_tokenizer(folder)
    check_vocabularies(*folders, 259, 300)
    text = (folders[1] / "tokenizer.json").read_text()
    (folders[1] / "tokenizer.json").write_text(text.replace("<eos>", "<end>"))
    assert "257 is '<end>', not '<eos>'" in refusal(*folders, 259, 259)


def test_a_missing_tokenizer_is_named(folders):
    target, draft = write(folders[0], tokens(5)), folders[1]
    draft.mkdir()
    assert "of the draft model" in refusal(target, draft)
    assert "of the target model" in refusal(draft, target)


def test_without_any_tokenizer_sizes_have_to_be_equal(folders):
    for folder in folders:
        folder.mkdir()
    check_vocabularies(*folders, 128, 128)
    assert "no such file" in refusal(*folders, 128, 120)


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "{", '{"model": 3}', '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": "0"}}}',
     '{"model": {"vocab": {"a": -1}}}', '{"model": {"vocab": [[]]}}', '{"model": {"vocab": {}}, "added_tokens": 3}',
     '{"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}', '{"model": {"vocab": {"a": 0, "a": 1}}}'],
)  # fmt: skip
def test_a_damaged_file_is_named(folders, content):
    write(folders[0], tokens(5))
    folders[1].mkdir()
    (folders[1] / "tokenizer.json").write_text(content)
    assert str(folders[1] / "tokenizer.json") in refusal(*folders)
