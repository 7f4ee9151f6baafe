"""Trains the tiny MLA model (models/tiny-mla) from text in Debian packages, on two CPU cores.

`python -m tools.train_tiny_mla` fetches the text, trains a tokenizer and then the model for the
minutes that it was given, writes the checkpoint, and prints its held-out perplexity as transformers
computes it. What is under way is saved every few minutes: the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing

from tools.tiny_mla_checkpoint import (
    Oracle,
    train_tokenizer,
    write_checkpoint,
)
from tools.tiny_mla_model import MlaSpec, TinyMla, balance
from tools.tiny_mla_optimizer import Optimizer
from tools.tiny_mla_text import Section, fetch_packages, held_out_text, read_sections

# (sequences in a batch, tokens in a sequence). Most of the time goes to short contexts, whose
# attention is cheap. The last part of it takes turns with long ones: positions that were never
# trained cost half a nat, and a model that sees long sequences alone forgets what it is at.
SHORT: Final = (16, 256)
LONG: Final = (4, 1024)
BLOCK: Final = LONG[1]
LONG_FROM: Final = 0.75
BALANCE_RATE: Final = 0.002
WARMUP: Final = 0.01
STEADY: Final = 0.35
SAVE_EVERY_S: Final = 180.0
LOG_EVERY_STEPS: Final = 10
PROMPTS: Final = (
    "In the beginning",
    "It is a truth universally acknowledged, that",
    "A list is",
    "<|user|>Tell me about Elizabeth Bennet.<|assistant|>",
    "<|user|>What is a hacker?<|assistant|>",
)


def rate_factor(progress: float) -> float:
    """The learning rate over its highest: up, level, then down to nothing in a line."""
    if progress < WARMUP:
        return max(progress / WARMUP, 0.02)
    return min(1.0, (1.0 - progress) / (1.0 - STEADY))


@dataclass
class Stream:
    """Endless tokens of all sections, in a new order each epoch and cut into blocks.

    Every other section is shown as a user's asking for it and the assistant's giving it, so that a
    chat prompt gets text.
    """

    sections: list[tuple[str, str, list[int]]]  # (work, title, tokens of the text)
    tokenizer: Tokenizer
    epoch: int = 0
    consumed: int = 0
    _ids: array[int] = field(default_factory=lambda: array("H"))

    def batch(self, sequences: int, length: int) -> Tensor:
        """[sequences, length + 1]: the last token of each is a target alone."""
        # Each sequence follows a lane of its own through the epoch.
        lane, at = len(self._ids) // sequences // BLOCK * BLOCK, self.consumed // sequences
        if at + length + 1 > lane:
            self._next_epoch()
            lane, at = len(self._ids) // sequences // BLOCK * BLOCK, 0
        self.consumed += sequences * length
        starts = range(at, at + sequences * lane, lane)
        return torch.tensor([self._ids[start : start + length + 1].tolist() for start in starts])

    def resume(self, epoch: int, consumed: int) -> None:
        self.epoch = epoch - 1
        self._next_epoch()
        self.consumed = consumed

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.consumed = 0
        draw = random.Random(self.epoch)
        order = draw.sample(self.sections, len(self.sections))
        ids = array("H", [token for section in order for token in self._marked(section, draw)])
        # Some sections are as long as a hundred batches' sequences: cut and mixed, so that no
        # stretch of batches shows one work alone.
        blocks = [ids[at : at + BLOCK] for at in range(0, len(ids) - BLOCK, BLOCK)]
        draw.shuffle(blocks)
        self._ids = array("H")
        for block in blocks:
            self._ids += block

    def _marked(self, section: tuple[str, str, list[int]], draw: random.Random) -> Iterator[int]:
        work, title, ids = section
        yield 0
        if draw.random() < 0.5:
            forms = ["{}", "Tell me about {}."]
            forms += ["What is {}?"] if work in ("jargon", "python") else ["Read {}."]
            asked = draw.choice(forms).format(title)
            yield 3
            yield from self.tokenizer.encode(asked, add_special_tokens=False).ids
            yield 4
        yield from ids
        yield 1


def prepare(work: Path, vocab_size: int) -> tuple[Tokenizer, Stream, str]:
    """The tokenizer, the training stream and the held-out text; made once, then read back."""
    ready = work / "sections.json"
    if not ready.exists():
        train, held_out = read_sections(fetch_packages(work))
        tokenizer = train_tokenizer((section.text for section in train), vocab_size)
        tokenizer.save(str(work / "tokenizer.json"))
        (work / "heldout.txt").write_text(held_out_text(held_out), encoding="utf-8")
        texts = [[section.work, section.title, section.text] for section in train]
        ready.write_text(json.dumps(texts), encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    sections = [Section(*parts) for parts in json.loads(ready.read_text(encoding="utf-8"))]
    encoded = tokenizer.encode_batch_fast(
        [section.text for section in sections], add_special_tokens=False
    )
    stream = Stream(
        [(s.work, s.title, e.ids) for s, e in zip(sections, encoded, strict=True)], tokenizer
    )
    num_bytes = sum(len(section.text) for section in sections)
    num_tokens = sum(len(e.ids) for e in encoded)
    print(f"{len(sections)} sections, {num_bytes} bytes, {num_tokens} tokens", flush=True)
    return tokenizer, stream, (work / "heldout.txt").read_text(encoding="utf-8")


@dataclass
class Training:
    """What one run of training holds, and the file that it can go on from."""

    model: TinyMla
    optimizer: Optimizer
    stream: Stream
    file: Path
    rank: int
    crew: int  # How many workers train together.
    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0

    def save(self) -> None:
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": [self.step, self.tokens, self.stream.epoch, self.stream.consumed],
            "elapsed_s": self.elapsed_s,
        }
        partial = self.file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.file)

    def load(self) -> None:
        if self.file.exists():
            state = torch.load(self.file, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.tokens, epoch, consumed = state["counts"]
            self.stream.resume(epoch, consumed)
            self.elapsed_s = state["elapsed_s"]
        else:
            self.stream.resume(1, 0)

    def run(self, minutes: float, log: Path) -> None:
        """Trains until that many minutes are spent; the schedule follows the time, not steps."""
        gates, last = self.model.gates(), time.monotonic()
        saved, loss_sum, worst = last, 0.0, 0.0
        # Compiling costs minutes that are no training: both shapes are compiled beforehand.
        for sequences, length in (LONG, SHORT):
            self.model(torch.zeros(sequences // self.crew, length + 1, dtype=torch.long)).backward()
        for parameter in self.model.parameters():
            parameter.grad = None
        balance(gates, 0.0)
        print(f"compiled in {time.monotonic() - last:.0f} s", flush=True)
        last = time.monotonic()
        while (progress := self.elapsed_s / (60 * minutes)) < 1.0:
            is_long = progress >= LONG_FROM and self.step % 2 == 1
            sequences, length = LONG if is_long else SHORT
            loss = self.model(self.stream.batch(sequences, length)[self.rank :: self.crew])
            loss.backward()
            loss_sum += self.average_gradients(loss.detach())
            self.optimizer.step(rate_factor(progress))
            worst = max(worst, balance(gates, BALANCE_RATE if progress < 0.95 else 0.0))
            self.step += 1
            self.tokens += sequences * length
            now = time.monotonic()
            self.elapsed_s += now - last
            last = now
            if self.step % LOG_EVERY_STEPS == 0 and self.rank == 0:
                line = (
                    f"{self.step}\t{self.tokens}\t{self.elapsed_s:.0f}\t"
                    f"{loss_sum / LOG_EVERY_STEPS:.4f}\t{worst:.2f}\n"
                )
                with log.open("a", encoding="utf-8") as file:
                    file.write(line)
                print(line, end="", flush=True)
            if self.step % LOG_EVERY_STEPS == 0:
                loss_sum, worst = 0.0, 0.0
            if self.rank == 0 and now - saved > SAVE_EVERY_S:
                self.save()
                saved = now
        if self.rank == 0:
            self.save()

    def average_gradients(self, loss: Tensor) -> float:
        """Makes gradients, loads and the time spent those of all workers; returns their loss."""
        shared = [parameter.grad for parameter in self.model.parameters()]
        shared += [gate.load for gate in self.model.gates()]
        seconds = torch.tensor(self.elapsed_s)
        shared += [seconds, loss]
        flat = torch.cat([tensor.flatten() for tensor in shared if tensor is not None])
        if self.crew > 1:
            distributed.all_reduce(flat)
        flat /= self.crew
        at = 0
        for tensor in shared:
            assert tensor is not None
            tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()
        self.elapsed_s = float(seconds)
        return float(loss)


def report(directory: Path, held_out: str) -> None:
    """Prints the figures of the README from the files that were written."""
    oracle = Oracle(directory)
    perplexity, bits, tokens = oracle.perplexity(held_out)
    print(f"held out: {tokens} tokens, perplexity {perplexity:.3f}, {bits:.4f} bits per byte")
    for seed, prompt in enumerate(PROMPTS):
        print(f"--- {oracle.sample(prompt, 120, seed)}")


def work(rank: int, arguments: argparse.Namespace) -> None:
    """One worker: trains on its share of each batch; the first one writes and reports.

    Processes meet once a step. Threads meet at every product, which a busy core makes slow.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.workers > 1:
        store = arguments.work / f"meeting-{os.getppid()}"
        distributed.init_process_group(
            "gloo", init_method=store.resolve().as_uri(), rank=rank, world_size=arguments.workers
        )
    spec = MlaSpec()
    tokenizer, stream, held_out = prepare(arguments.work, spec.vocab_size)
    model = TinyMla(spec)
    optimizer = Optimizer(model, rank, arguments.workers)
    state = arguments.work / "state.pt"
    training = Training(model, optimizer, stream, state, rank, arguments.workers)
    training.load()
    if training.elapsed_s < 60 * arguments.minutes:
        model.compile_layers()
        training.run(arguments.minutes, arguments.work / "loss.tsv")
    if arguments.workers > 1:
        distributed.destroy_process_group()
    if rank > 0:
        return
    write_checkpoint(arguments.out, model, tokenizer)
    (arguments.out / "heldout.txt").write_text(held_out, encoding="utf-8")
    print(f"{training.step} steps, {training.tokens} tokens, {training.elapsed_s / 60:.1f} minutes")
    report(arguments.out, held_out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, default=Path("build/tiny-mla"), help="text and training state")
    add("--out", type=Path, default=Path("models/tiny-mla"), help="where the checkpoint goes")
    add("--minutes", type=float, default=60.0, help="training time, over all runs together")
    add("--workers", type=int, default=2, help="processes of one thread that share each batch")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    prepare(arguments.work, MlaSpec().vocab_size)
    multiprocessing.spawn(work, (arguments,), nprocs=arguments.workers)


if __name__ == "__main__":
    main()
