"""A draft model is cut out of the target, trained from prompts alone, and changes no text; the same bytes each time.

Run: pytest tests/training/test_draft.py
"""

import pytest
import torch
from support.tiny_models import ARCHITECTURES, EOS, byte_tokenizer, tiny_checkpoint
from support.tiny_training import PROMPTS, files_of, learnable_checkpoint, tiny_draft_settings
from torch.nn.functional import cross_entropy

from tspec import LLM, SamplingParams
from tspec.checkpoint.hf_config import read_config
from tspec.core.errors import ConfigError
from tspec.training import student as student_module
from tspec.training.draft import train_draft, write_draft
from tspec.training.hidden import Target, load_target
from tspec.training.settings import DraftSettings, kept_layers
from tspec.training.student import Student, judge_student, make_lesson
from tspec.training.texts import Text

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target of three layers whose texts can be learned."""
    return learnable_checkpoint(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def trained(target, tmp_path_factory):
    """The folder of a whole run, and its records."""
    out, records = tmp_path_factory.mktemp("run") / "out", []
    train_draft(target, PROMPTS, out, tiny_draft_settings(), on_record=records.append)
    return out, records


def cut(folder, layers):
    model = load_target(folder, CPU, torch.float32)
    return Target(model, (), CPU), Student(model, layers), model.lm_head.weight


def answers(target, draft=None):
    """Token ids after some prompts, and tokens per pass."""
    config = None
    if draft is not None:
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    with LLM(target, speculative_config=config) as llm:
        results = [llm.generate(prompt, SamplingParams(max_tokens=40))[0] for prompt in ("ABBA", "X")]
        return [result.token_ids for result in results], llm.metrics().tokens_per_pass


def test_the_loss_falls_and_candidates_are_accepted(trained):
    first, held_out = trained[1][0], [record for record in trained[1] if record.is_held_out]
    assert len(held_out) == 2
    assert held_out[-1].loss[0] < first.loss[0] / 4
    assert first.tokens_per_pass < 1.5
    assert held_out[-1].tokens_per_pass > 3.4


def test_the_draft_model_changes_no_text(trained, target):
    plain, _ = answers(target)
    texts, tokens_per_pass = answers(target, trained[0] / "draft")
    assert texts == plain
    assert tokens_per_pass > 3


def test_the_same_seed_and_texts_give_the_same_bytes(trained, with_texts, target):
    draft = train_draft(target, PROMPTS, with_texts, tiny_draft_settings())
    assert files_of(draft) == files_of(trained[0] / "draft")
    assert set(files_of(draft)) >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize("last", [1, 20])
def test_a_stopped_training_goes_on_to_the_same_bytes(trained, with_texts, target, last):
    def stop(record):
        if record.update == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_draft(target, PROMPTS, with_texts, tiny_draft_settings(), on_record=stop)
    train_draft(target, PROMPTS, with_texts, tiny_draft_settings())
    assert files_of(with_texts / "draft") == files_of(trained[0] / "draft")
    assert (with_texts / "records.jsonl").read_bytes() == (trained[0] / "records.jsonl").read_bytes()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tie", [False, True])
def test_a_cut_target_of_each_family_decodes_as_what_was_trained(architecture, tie, tmp_path):
    sliding = {}
    if architecture == "qwen2":
        kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
        sliding = {"use_sliding_window": True, "sliding_window": 4, "layer_types": kinds}
    folder = tmp_path / "target"
    tiny_checkpoint(folder, architecture, layers=4, vocab=EOS + 2, tie=tie, **sliding)
    byte_tokenizer(folder)
    config = read_config(folder)
    layers = kept_layers(config, DraftSettings(num_layers=3))
    _, student, head = cut(folder, layers)
    head = head.bfloat16().float()
    with torch.no_grad():
        for value in student.parameters():
            value.copy_(value.bfloat16())
    write_draft(tmp_path / "draft", folder, config, student, head, layers)
    assert read_config(tmp_path / "draft").sliding_windows == tuple(
        config.sliding_windows[at] for at in layers
    )
    again = load_target(tmp_path / "draft", CPU, torch.float32)
    tokens = torch.arange(40, 60)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, student(tokens) @ head.T)
    plain, _ = answers(folder)
    assert answers(folder, tmp_path / "draft")[0] == plain


def test_the_loss_and_its_gradient_are_those_of_cross_entropy_at_taught_places(target, monkeypatch):
    monkeypatch.setattr(student_module, "ROWS_AT_A_TIME", 3)
    teacher, student, head = cut(target, [0, 2])
    texts = [Text(0, [40, 41, 42], [50, 51, 52, 53]), Text(1, [60], [61, 62, 63])]
    taught = make_lesson(teacher, texts, teacher.observe(texts))
    loss, outcome = judge_student(student, taught, head)
    loss.backward()
    gradient = student.decoder.norm.weight.grad.clone()
    student.zero_grad()
    rows, probabilities, likeliest = [], [], []
    for text in texts:
        tokens = torch.tensor([text.prompt + text.answer])
        where = slice(len(text.prompt) - 1, -1)
        rows.append(student(tokens)[0, where] @ head.T)
        probabilities.append(teacher.model(tokens).logits[0, where].softmax(-1))
        likeliest.append(probabilities[-1].argmax(-1) == rows[-1].argmax(-1))
    expected = cross_entropy(torch.cat(rows), torch.cat(probabilities))
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, student.decoder.norm.weight.grad)
    assert student.decoder.embed_tokens.weight.grad is None
    assert outcome.sums[:, 2].tolist() == [7, 5, 3]
    assert outcome.sums[0, 4] == sum(int(each.sum()) for each in likeliest)


def test_layers_are_spaced_evenly_with_the_first_and_the_last(tmp_path):
    tiny_checkpoint(tmp_path, "llama", layers=16)
    config = read_config(tmp_path)
    assert kept_layers(config, DraftSettings()) == [0, 15]
    assert kept_layers(config, DraftSettings(num_layers=4)) == [0, 5, 10, 15]
    assert kept_layers(config, DraftSettings(num_layers=1)) == [0]


def test_as_many_layers_as_the_target_has_are_refused_before_anything_is_written(target, tmp_path):
    with pytest.raises(ConfigError, match="num_layers: got 3, need fewer than the target's 3"):
        train_draft(target, PROMPTS, tmp_path / "out", tiny_draft_settings(num_layers=3))
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_head_is_left_alone(trained, target):
    with pytest.raises(ConfigError, match="a run with other settings"):
        train_draft(target, PROMPTS, trained[0], tiny_draft_settings(num_epochs=3))
