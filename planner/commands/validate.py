"""The command that checks the cost model against measurements."""

from __future__ import annotations

import sys

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.errors import InvalidInputError

WORST_ROWS = 5


def validate(
    table: opt.ValidatedTable = None,
    gpu: opt.RowGpu = None,
    model: opt.RowModel = None,
    worst: opt.Worst = None,
    data: opt.Data = None,
    no_anchors: opt.NoAnchors = False,
    write_residuals: opt.WriteResiduals = None,
    write_docs: opt.WriteDocs = None,
    as_json: opt.AsJson = False,
) -> None:
    """Price published measurements, each with its own configuration, and show how far off the cost model is."""
    from planner.validation.run import Request, tables_named

    num_worst = WORST_ROWS if worst is None else worst
    if num_worst < 0:
        raise InvalidInputError(f"{num_worst} is below 0", where="--worst")
    request = Request(tables=tables_named(table or ()), gpu=gpu or "", model=model or "", directory=data)
    if (write_residuals or write_docs) and not request.is_whole:
        raise InvalidInputError(
            "needs all shipped rows",
            where="--write-residuals and --write-docs",
            accepted="no --table, --gpu, --model or --data",
        )
    with progress("pricing"):
        from planner.validation.run import validate as price_tables

        evaluations = price_tables(request)
    if write_residuals is not None:
        from planner.files.atomic import write_atomic
        from planner.files.residuals import residuals_text
        from planner.validation.run import residual_file

        write_atomic(write_residuals, residuals_text(residual_file(evaluations)).encode())
        print(f"saved {write_residuals}", file=sys.stderr)
    from planner.validation.targets import held_out_errors

    # They are those of all shipped rows.
    held_out = held_out_errors() if not (data or gpu or model) else ()
    if write_docs is not None:
        from planner.report.accuracy_docs import write_accuracy

        for path in write_accuracy(evaluations, held_out, write_docs):
            print(f"saved {path}", file=sys.stderr)
    if as_json:
        import json

        from planner.report.accuracy_json import accuracy_document

        document = accuracy_document(evaluations, held_out, num_worst=num_worst, with_anchors=not no_anchors)
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    from planner.report.accuracy import accuracy_report

    print_table(accuracy_report(evaluations, held_out, num_worst=num_worst, with_anchors=not no_anchors))
