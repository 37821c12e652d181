"""`energy-data prepare-tokens`: how many tokens each sample has."""

from __future__ import annotations

from time import perf_counter

import click

from energy_data.cli.options import counting, part_options, progress_option, workers_option
from energy_data.data.text.chat import TokenizeChat
from energy_data.data.text.counting import count_tokens
from energy_data.data.text.tokenize import Tokenize, Tokenizing
from energy_data.remote.mirror_paths import cache_folder


@click.command("prepare-tokens")
@click.argument("path")
@click.option(
    "--tokenizer",
    required=True,
    metavar="PATH",
    help="A tokenizer.json, or a folder with one.",
)
@click.option("--field", metavar="NAME", help="The field of the text.  [default: text]")
@click.option(
    "--messages",
    metavar="NAME",
    help="The field of a conversation instead, which becomes text by the chat template of the "
    "tokenizer.",
)
@click.option("--tools", metavar="NAME", help="With --messages: the field of the tools.")
@part_options("Count shards N, N + M, ... only.")
@workers_option("one per 64 MiB, at most one per CPU")
@click.option("--force", is_flag=True, help="Replace the counts of another tokenizer or field.")
@progress_option
def command(
    path: str,
    *,
    tokenizer: str,
    part: int | None,
    of: int | None,
    num_workers: int | None,
    force: bool,
    progress: bool,
    **fields: str | None,
) -> None:
    """Count the tokens of each text or conversation.

    PATH is a folder of tars, JSONL, Parquet or Arrow files; one of them; a pattern; or a URL of
    these. Of a prepared folder, all split parts are counted.

    Writes next to each shard its counts. Then weights by tokens need no `tokens_per_sample`, and
    `inspect` shows the tokens of each dataset. What was stopped continues where it was; shards
    that were counted by the same tokenizer are left as they are. Counts of another tokenizer or
    field are an error without --force.
    """
    if (part is None) != (of is None) or (part is not None and of is not None and part >= of):
        raise click.UsageError(
            "--part and --of go together, as --part 0 --of 4 to --part 3 --of 4."
        )
    began, tokenize = perf_counter(), _tokenize(tokenizer, **fields)
    with counting(progress, "Counting tokens") as done:
        found = count_tokens(
            path,
            tokenize,
            part=(part or 0, of or 1),
            workers=num_workers,
            force=force,
            progress=done,
        )
    shards = f"{found.shards:,} shard{'' if found.shards == 1 else 's'}"
    click.echo(
        f"{path}: {found.tokens:,} tokens in {found.samples:,} samples of {shards}, "
        f"{found.tokens / found.samples:,.1f} in each, {perf_counter() - began:.1f} s"
    )
    if found.refusal:
        click.echo(
            f"  kept in the cache {cache_folder()}, as the store is read-only: {found.refusal}"
        )
    if found.problem:
        click.echo(f"  {found.problems:,} samples have none and count 0, first {found.problem}")


def _tokenize(
    tokenizer: str, *, field: str | None, messages: str | None, tools: str | None
) -> Tokenizing:
    if messages is None:
        if tools is not None:
            raise click.UsageError("--tools: it needs --messages.")
        return Tokenize(tokenizer, field=field or "text")
    if field is not None:
        raise click.UsageError("--field and --messages exclude each other: give one.")
    return TokenizeChat(tokenizer, field=messages, tools=tools)
