"""Makes a policy: times the machine, lets the target answer prompts, finds what pays, and tries it on other prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune import cpu_probe
from autotune.method_search import Found, Search, lookup_priors, search_lookup, search_model
from autotune.pass_grid import TimedPass, time_grid, time_kernels
from autotune.rounds import play_proposer
from autotune.texts import Text, answer, encode, split
from tspec.build import BuildOptions, Progress, load_config
from tspec.build_policy import policy_key
from tspec.build_proposer import AUTO_CANDIDATES, make_lookups, time_costs
from tspec.checkpoint.policy_file import write_policy
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import MethodPolicy, Policy
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.kernels.cpu.host import read_host
from tspec.proposers.union import Union
from tspec.requests.text_engine import TextEngine, open_text_engine
from tspec.runtime.executor import CpuExecutor

REPEATS = 9
KERNEL_NODES = (1, 8)
"""Nodes of the passes whose launches are timed by themselves."""
LOOKUPS = ("ngram", "suffix")


@dataclass(frozen=True, slots=True)
class Job:
    """What a policy is made for.

    models   configurations of methods that need a model; lookups are always tuned
    options  of the engines, as the user's will have them
    """

    checkpoint: Path
    models: Sequence[SpeculativeConfig]
    prompts: Sequence[str]
    max_tokens: int
    options: BuildOptions
    on_progress: Progress

    def open(self, speculative: SpeculativeConfig, policy: Path | None = None) -> TextEngine:
        """An engine of one sequence at a time."""
        fields = {name: getattr(self.options, name) for name in BuildOptions.__dataclass_fields__}
        fields |= {"policy": policy}
        return open_text_engine("autotune", self.checkpoint, speculative, self.on_progress, fields)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The machine with the target on it.

    tuned, kept   token ids of the prompts to tune on, and of those to try the policy on
    texts         the former, answered
    """

    costs: PassCosts
    figures: dict[str, Any]
    tuned: list[list[int]]
    kept: list[list[int]]
    texts: list[Text]
    most_candidates: int


def make_policy(job: Job, file: Path) -> Policy:
    """Measure, search, write the policy; try it on prompts that it was not made from, and write what came of it.

    Errors   those of an engine; ConfigError for too few prompts and for a file that cannot be written
    """
    tuned, kept = split(job.prompts)
    measured = _measure(job, tuned, kept)
    found = _search_lookups(job, measured)
    search = Search(job.open, measured.tuned, measured.costs, measured.most_candidates, job.max_tokens)
    for number, model in enumerate(job.models):
        job.on_progress("search models", number, len(job.models))
        found[model.method] = search_model(model, search)
    priors = {name: each for one in found.values() for name, each in one.priors.items()}
    policy = Policy(
        key=policy_key(job.options, job.checkpoint, load_config(job.checkpoint, job.options.dtype)),
        costs=measured.costs,
        priors=priors,
        methods={name: each.policy for name, each in found.items()},
        figures={
            **measured.figures,
            "model": job.checkpoint.name,
            "max_tokens": job.max_tokens,
            "num_prompts": [len(tuned), len(kept)],
            "methods": {name: each.figures for name, each in found.items()},
        },
        source=str(file),
    )
    write_policy(file, policy)
    policy = _tried(job, policy, measured.kept, file)
    write_policy(file, policy)
    return policy


def _measure(job: Job, tuned: Sequence[str], kept: Sequence[str]) -> _Measured:
    """Time passes and launches, and answer the prompts to tune on."""
    engine = job.open(SpeculativeConfig("ngram", num_speculative_tokens=AUTO_CANDIDATES))
    try:
        inner, is_cuda = engine.opened(), job.options.device == "cuda"
        executor, max_context = inner.executor, inner.max_model_len - MAX_NODES
        cheap = MAX_NODES if is_cuda else read_host().cheap_rows
        sizes = (cheap, AUTO_CANDIDATES, job.options.max_num_seqs, inner.max_model_len)
        costs = time_costs(executor, SpeculativeConfig(), *sizes, is_padded=is_cuda)
        job.on_progress("time passes", 1, 2)
        most_nodes = (1 if is_cuda else 2) * (AUTO_CANDIDATES + 1)  # a device has captured no others
        passes = time_grid(executor, job.options.max_num_seqs, most_nodes, max_context, REPEATS)
        job.on_progress("time passes", 2, 2)
        figures = _machine_figures(executor, passes)
        prompts = [[encode(engine, prompt) for prompt in each] for each in (tuned, kept)]
        texts = []
        for number, prompt in enumerate(prompts[0], start=1):
            texts.append(answer(engine, prompt, job.max_tokens, speculates=False).text)
            job.on_progress("answer prompts", number, len(tuned))
    finally:
        engine.close()
    most_candidates = min(AUTO_CANDIDATES, cheap - 1)
    return _Measured(costs, figures, prompts[0], prompts[1], texts, most_candidates)


def _machine_figures(executor: Any, passes: Sequence[TimedPass]) -> dict[str, Any]:
    figures: dict[str, Any] = {"passes": [each.as_json() for each in passes]}
    if isinstance(executor, CpuExecutor):
        figures["read_gb_s"], figures["tflops"] = cpu_probe.measure_cpu()
        figures["kernels"] = {
            str(nodes): [each.as_json() for each in time_kernels(executor, nodes, REPEATS)]
            for nodes in KERNEL_NODES
        }
    return figures


def _search_lookups(job: Job, measured: _Measured) -> dict[str, Found]:
    """What lookups are worth by themselves, and together as `auto` asks them."""
    texts, costs = measured.texts, measured.costs
    found = {}
    for number, method in enumerate(LOOKUPS):
        job.on_progress("search lookups", number, len(LOOKUPS) + 1)
        found[method] = search_lookup(method, texts, costs, measured.most_candidates)
    auto = SpeculativeConfig("auto")
    priors = lookup_priors(make_lookups(auto), texts, costs, AUTO_CANDIDATES)
    lookups = make_lookups(auto, priors=priors)
    played = play_proposer(Union("auto", lookups, costs), texts, costs, AUTO_CANDIDATES, costs.ask_s)
    depths = played.num_depths
    figures = {
        "tokens_per_pass": played.tokens_per_pass,
        "chances": played.chances[:depths].round(5).tolist(),
        "reached": played.reached[:depths].astype(int).tolist(),
    }
    root = (-1,)
    policy = MethodPolicy(AUTO_CANDIDATES, None, 1, root, predicted_speed_up=played.speed_up)
    found["auto"] = Found(policy, figures, priors)
    job.on_progress("search lookups", len(LOOKUPS) + 1, len(LOOKUPS) + 1)
    return found


def _tried(job: Job, policy: Policy, prompts: Sequence[Sequence[int]], file: Path) -> Policy:
    """The policy with the speed-up of each method on other prompts, as an engine that loads it has it."""
    configs = {each.method: each for each in job.models}
    methods = {}
    for number, (name, tuned) in enumerate(policy.methods.items()):
        job.on_progress("try methods", number, len(policy.methods))
        config = configs.get(name) or SpeculativeConfig(name)
        methods[name] = replace(tuned, measured_speed_up=measured_speed_up(job, config, prompts, file))
    job.on_progress("try methods", len(methods), len(methods))
    return replace(policy, methods=methods)


def measured_speed_up(
    job: Job, config: SpeculativeConfig, prompts: Sequence[Sequence[int]], file: Path
) -> float | None:
    """Decode prompts plainly and with candidates in turn; None where no text goes beyond its first token."""
    engine, plain_s, fast_s = job.open(config, file), 0.0, 0.0
    try:
        answer(engine, prompts[0], min(job.max_tokens, 16), speculates=True)  # what is bound on first use
        for prompt in prompts:
            plain_s += answer(engine, prompt, job.max_tokens, speculates=False).decode_s
            fast_s += answer(engine, prompt, job.max_tokens, speculates=True).decode_s
    finally:
        engine.close()
    return plain_s / fast_s if fast_s else None
