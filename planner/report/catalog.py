"""The catalogs of models and hardware as tables: `rlplan models`, `rlplan hardware`.

Loads neither numpy nor the stage graph: frameworks, which need both, are in `planner.report.frameworks`.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.domain.hardware import Gpu, NodeType, Provenance
from planner.domain.model import LayerClass, Model
from planner.errors import InvalidInputError, nearest
from planner.files import catalog
from planner.units import format_bandwidth, format_bytes, format_percent


def model_table() -> Table:
    """Every model of the catalog."""
    table = plain_table()
    table.add_column("model", style="bold", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("active", justify="right", no_wrap=True)
    table.add_column("also known as", ratio=1, overflow="fold")
    for entry in catalog.list_models():
        published = entry.published
        active = "" if published.active_billion is None else f"{published.active_billion:g} B"
        names = [entry.hf_repo, *(alias for alias in entry.aliases if alias.lower() != entry.id)]
        table.add_row(entry.id, f"{published.total_billion:g} B", active, ", ".join(dict.fromkeys(names)))
    return table


def model_details(name: str) -> Group:
    """One model: its size, its layers and where the facts come from."""
    model = catalog.load_model(name)
    entry = next((item for item in catalog.list_models() if item.id == model.id), None)
    rows = [
        ("parameters", f"{model.num_params / 1e9:.3f} B, {model.num_active_params / 1e9:.3f} B active per token"),
        ("architecture", model.architecture),
        ("hidden size", f"{model.hidden_size:,}"),
        ("vocabulary", f"{model.vocab_size:,}" + (", embeddings tied" if model.is_embedding_tied else "")),
        ("positions", f"{model.max_positions:,}" if model.max_positions is not None else "unknown"),
        ("cache per token", _cache(model)),
    ]
    if entry is not None:
        rows.append(("published", _published(entry)))
        rows.append(("source", f"{entry.source} ({entry.date}, {entry.confidence} confidence)"))
    title = Text.assemble((model.id, "bold"), f"  {model.hf_repo}" if model.hf_repo else "")
    return Group(title, pair_table(rows), Text(), _layers(model))


def _cache(model: Model) -> str:
    elements = sum(layer.num_layers * layer.attention.kv_elements_per_token for layer in model.layers)
    state = sum(layer.num_layers * layer.attention.state_elements_per_sequence for layer in model.layers)
    text = f"{2 * elements / 1024:,.1f} KiB in bf16"
    return f"{text}, and a state of {format_bytes(2 * state)} per sequence" if state else text


def _published(entry: catalog.ModelEntry) -> str:
    published = entry.published
    stored = f", {published.stored_total:,} stored" if published.stored_total is not None else ""
    note = f" ({published.note})" if published.note else ""
    return f"{published.total_billion:g} B{stored}{note}; {published.source}"


def _layers(model: Model) -> Table:
    table = plain_table()
    table.add_column("layers", style="bold", no_wrap=True)
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("parameters each", justify="right", no_wrap=True)
    table.add_column("attention", ratio=1)
    table.add_column("MLP", ratio=1)
    for layer in model.layers:
        size = (layer.dense_params + layer.expert_params) / 1e6
        table.add_row(layer.name, str(layer.num_layers), f"{size:,.1f} M", _attention(layer), _mlp(layer))
    return table


def _attention(layer: LayerClass) -> str:
    attention = layer.attention
    heads = f"{attention.num_heads} heads, {attention.num_kv_heads} KV heads" if attention.num_heads else ""
    window = f"window {attention.window_tokens:,}" if attention.window_tokens is not None else ""
    return ", ".join(part for part in (attention.kind, heads, window) if part)


def _mlp(layer: LayerClass) -> str:
    mlp = layer.mlp
    if not mlp.is_moe:
        return f"dense, {mlp.dense_params / 1e6:,.1f} M"
    shared = f", {mlp.dense_params / 1e6:,.1f} M for every token" if mlp.dense_params else ""
    return f"{mlp.num_active_experts} of {mlp.num_experts} experts of {mlp.params_per_expert / 1e6:,.1f} M{shared}"


def hardware_table() -> Group:
    """Every GPU and node type of the catalog."""
    gpus = plain_table()
    gpus.add_column("GPU", style="bold", no_wrap=True)
    gpus.add_column("memory", justify="right", no_wrap=True)
    gpus.add_column("architecture", no_wrap=True)
    gpus.add_column("also known as", ratio=1)
    for gpu in catalog.list_gpus():
        gpus.add_row(gpu.id, format_bytes(gpu.memory_bytes), gpu.architecture, ", ".join(gpu.aliases))
    nodes = plain_table()
    nodes.add_column("node type", style="bold", no_wrap=True)
    nodes.add_column("GPUs", no_wrap=True)
    nodes.add_column("USD/GPU-hour", justify="right", no_wrap=True)
    nodes.add_column("also known as", ratio=1, overflow="fold")
    for node in catalog.list_nodes():
        price = "" if node.usd_per_gpu_hour is None else f"{node.usd_per_gpu_hour:.2f}"
        nodes.add_row(node.id, f"{node.gpus_per_node} x {node.gpu}", price, ", ".join(node.aliases))
    return Group(gpus, Text(), nodes)


def hardware_details(name: str) -> Group:
    """One GPU with its generic node, or one node type."""
    try:
        node = catalog.generic_node(name)
    except InvalidInputError:
        # Not a GPU; what is no node type either is reported with the names of both.
        node = _node_type(name)
    return Group(
        Text(node.gpu.name, style="bold"), pair_table(_gpu_rows(node.gpu)), Text(),
        Text.assemble((node.name, "bold"), f"  {node.id}"), pair_table(_node_rows(node)),
    )  # fmt: skip


def _node_type(name: str) -> NodeType:
    try:
        return catalog.load_node(name)
    except InvalidInputError:
        known = [known_name for gpu in catalog.list_gpus() for known_name in (gpu.id, *gpu.aliases)]
        known += [known_name for node in catalog.list_nodes() for known_name in (node.id, *node.aliases)]
        raise InvalidInputError(
            f"{name[:60]!r} is no known GPU or node type",
            accepted="see rlplan hardware",
            suggestion=nearest(name, known),
        ) from None


def _gpu_rows(gpu: Gpu) -> list[tuple[str, str]]:
    rates = [f"{precision.value} {rate / 1e12:,.1f} TFLOP/s" for precision, rate in gpu.peak_flop_per_s]
    reached = [f"{p.value} {format_percent(k.gemm_flop_ratio)}" for p, k in gpu.kernels]
    return [
        ("memory", f"{format_bytes(gpu.memory_bytes)}, {gpu.hbm_bytes_per_s / 1e12:.2f} TB/s"),
        ("peak (dense)", ", ".join(rates)),
        ("matrix products reach", ", ".join(reached)),
        ("scale-up", f"{gpu.scale_up_kind}, {format_bandwidth(gpu.scale_up_bytes_per_s)} per direction"),
        ("host link", format_bandwidth(gpu.host_link_bytes_per_s)),
        ("source", _source(gpu.provenance)),
    ]


def _node_rows(node: NodeType) -> list[tuple[str, str]]:
    price = "unknown; give --price"
    if node.price is not None:
        listed = node.price
        origin = f"{listed.provider} {listed.region} {listed.kind}, {listed.date}"
        price = f"{listed.usd_per_gpu_hour:.2f} USD per GPU-hour ({origin})"
    return [
        ("GPUs", f"{node.gpus_per_node}, {node.scale_up_domain_gpus} in one scale-up domain"),
        (
            "NIC per GPU",
            f"{node.nic_bytes_per_s * 8 / 1e9:,.4g} Gbit/s, {format_percent(node.network.nic_ratio)} sustained",
        ),
        ("host RAM", format_bytes(node.host_ram_bytes)),
        ("price", price),
        ("source", _source(node.provenance)),
    ]


def _source(provenance: Provenance) -> str:
    return f"{provenance.source} ({provenance.date}, {provenance.confidence} confidence)"


def plain_table() -> Table:
    """A table without lines, to which columns are added."""
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")


def pair_table(rows: list[tuple[str, str]]) -> RenderableType:
    """(name, value) rows."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True, max_width=40)
    table.add_column(ratio=1, overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table
