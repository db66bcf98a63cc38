"""SparseMLA's ops and layers, over tensors of any framework."""

from collections.abc import Callable, Sequence

__version__: str

class Error(RuntimeError): ...
class InvalidArgument(Error, ValueError): ...
class Unsupported(Error, NotImplementedError): ...
class IoError(Error, OSError): ...
class CudaError(Error): ...

def built_with_cuda() -> bool:
    """Whether this build has GPU kernels."""

def add_library_folders(folders: Sequence[str]) -> None:
    """Further folders where libraries of the CUDA toolkit may lie."""

class Cache:
    """
    A paged cache over a tensor (torch, numpy, or any with __dlpack__), which it keeps.

    tensor: blocks of bytes. With one dimension they follow each other, block_stride_bytes apart; with
            more, the first dimension counts blocks and its stride is theirs. Any dtype.
    format: how rows are stored: "fp8_ds_mla", "bf16", "fp8_per_tensor", "f32", "index_fp8", ...
    block_size: rows in a block.
    kv_scale: of fp8_per_tensor rows, number = e4m3 * kv_scale.

    Raises InvalidArgument for an unknown format and for blocks that do not fit in the tensor.
    """

    def __init__(
        self,
        tensor: object | None,
        format: str,
        block_size: int,
        block_stride_bytes: int | None = None,
        kv_scale: float = 1.0,
    ) -> None: ...
    @property
    def tensor(self) -> object: ...
    @property
    def format(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def kv_scale(self) -> float: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_stride_bytes(self) -> int: ...
    def __repr__(self) -> str: ...

class Plan:
    """
    An implementation of an op, chosen for one problem and kept.

    scalars: by name, as sparsemla.ops.<op> lists them; nested values are flattened.
    device: "cpu", "cuda" or "cuda:1".

    Raises InvalidArgument for an impossible problem and Unsupported when no implementation accepts it.
    """

    def __init__(
        self,
        op: str,
        scalars: dict = {},
        device: object = "cpu",
        implementation: str | None = None,
        deterministic: bool = False,
        threads: int = 0,
    ) -> None: ...
    def run(self, tensors: dict, workspace: object | None = None, stream: object | None = None) -> None:
        """
        Runs over tensors and caches by name; outputs are written in place.

        workspace: a tensor of workspace_bytes bytes, or None. stream: a cudaStream_t, or None: the current one.
        """

    @property
    def op(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    def __repr__(self) -> str: ...

def op_names() -> list: ...
def op_family(op: str) -> str: ...
def op_typical(op: str) -> str: ...
def op_members(op: str) -> list:
    """The scalars and tensors of an op: name, kind, dtype, dims, default."""

def determine(op: str, members: dict) -> dict:
    """
    The scalars of a call: those given and those that its tensors determine.
    """

def call(
    op: str,
    members: dict,
    stream: object | None = None,
    workspace: object | None = None,
    device: object | None = None,
    implementation: str | None = None,
    deterministic: bool = False,
    threads: int = 0,
) -> None: ...

class AttentionLayer:
    """
    An attention layer of DeepSeek-V4: hidden states in, hidden states out. It reads its weights where they lie and
    keeps them.

    config:  its numbers: hidden_size, num_heads, q_lora_rank, o_lora_rank, o_groups, compress_ratio (1, 4 or 128),
             index_n_heads, index_topk, rms_norm_eps, hadamard, ...
    weights: by checkpoint name, bf16 or float32: "wq_a.weight" [q_lora_rank, hidden], "q_norm.weight",
             "wq_b.weight", "wkv.weight", "kv_norm.weight", "wo_a.weight", "wo_b.weight", "attn_sink"
             (float32); with entries "compressor.{wkv.weight,wgate.weight,ape,norm.weight}"; C4A layers also
             "indexer.compressor.*", "indexer.{wq_b,weights_proj}.weight", but for those with reuses_topk.
             E4M3 with "wq_a.scale" beside it; NVFP4 (uint8, two codes a byte) with "wq_a.weight_scale" and
             "wq_a.weight_scale_2".
    cos_sin: the rope table [positions, 64] float32, cosines first; its device is the layer's.

    Options: precision ("bf16"; "f32": activations and caches in float32), cache_rows ("fp8_ds_mla"), index_rows
    ("index_fp8"), kv_scale, q_scale, front_end ("flashmla"), implementation, gather_prefill, strict,
    padded_heads, score_bytes, deterministic, threads, side_streams, draft_blocks (of DSpark: its window is kept one
    token longer).

    Raises InvalidArgument naming a number, weight or option that does not fit.
    """

    def __init__(self, config: dict, weights: dict, cos_sin: object, **options) -> None: ...
    @staticmethod
    def from_checkpoint(
        checkpoint: Checkpoint | str,
        layer: int,
        positions: int,
        move: Callable[[object], object] | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        keep_fp8: bool = False,
        keep_nvfp4: bool = False,
        **options,
    ) -> AttentionLayer:
        """
        A layer of a checkpoint, with a rope table of its own.

        checkpoint: a Checkpoint, or the path of a folder with config.json. layer: its index; layers of multi-token
        prediction come last. positions: tokens of the longest sequence. move: called with each tensor, which lies
        on the host and has __dlpack__, to place it on a GPU: lambda t: torch.from_dlpack(t).cuda(); None leaves
        it. tp_rank, tp_size, keep_fp8, keep_nvfp4: as Checkpoint.load_layer takes them. options: as AttentionLayer
        takes them; q_scale and kv_scale are the checkpoint's where it has some and none are given.

        Raises InvalidArgument, IoError, Unsupported, as Checkpoint and AttentionLayer do.
        """

    @property
    def caches(self) -> dict:
        """
        By role ("window", "compressed", "index", "state", "index_state"), where the layer has it:
        format, block_size, page_bytes and the group whose block table it uses.
        """

    @property
    def groups(self) -> list:
        """
        The cache groups: name, block_tokens (token p is in column p // block_tokens of a block table) and
        window (how many of the last tokens are kept; 0: all).
        """

    @property
    def device(self) -> str: ...
    def workspace_bytes(self, step: Step) -> int:
        """Bytes of workspace of a forward over this step."""

    def describe(self, step: Step) -> str:
        """The implementation of each op over this step."""

    def forward(
        self,
        step: Step,
        caches: dict,
        hidden: object,
        output: object,
        workspace: object | None = None,
        stream: object | None = None,
    ) -> None:
        """
        output = attention(hidden), both [tokens, hidden] in the layer's precision; rows of the step are written
        into the caches.

        step: a built Step of a layer of this kind. caches: a Cache by role. workspace: a tensor of bytes, or None.
        stream: a cudaStream_t, or None: the current one.
        """

    def insert_context(
        self,
        hidden: object,
        positions: object,
        slots: object,
        window: object,
        workspace: object | None = None,
        stream: object | None = None,
    ) -> None:
        """
        Writes rows of tokens into a window-only layer's cache and computes nothing else: the context of a layer
        of DSpark drafts, which sees what another stack made of these tokens.

        hidden: [tokens, hidden] in the layer's precision. positions: [tokens] int64. slots: [tokens] int64 of the
        cache, -1 where nothing is written. window: the layer's window Cache.
        """

class Step:
    """
    Slots and index rows of one step, for all layers of the kind (compress_ratio, cache formats, device) of `layer`.
    """

    def __init__(self, layer: AttentionLayer) -> None: ...
    def build(
        self,
        query_start_loc: object,
        seq_lens: object,
        positions: object,
        block_tables: list,
        max_seq_len: int | None = None,
        host_query_start_loc: object | None = None,
        host_seq_lens: object | None = None,
        decode_threshold: int = 1,
        dspark_tokens: int = 0,
        stream: object | None = None,
    ) -> None:
        """
        For a batch of R requests and T tokens, decodes first.

        query_start_loc: [R+1] int32. seq_lens: [R] int32, this step's tokens included. positions: [T] int64.
        block_tables: for each group [R, columns] int32, kept until the next build.
        max_seq_len: an upper bound of seq_lens; None: their largest. host_query_start_loc, host_seq_lens: the same
        as lists, which must be given on a GPU. decode_threshold: requests at the head with at most so many tokens
        are decodes. dspark_tokens: above 0 the decodes are DSpark blocks of at most so many draft tokens, which
        see the whole block, the later ones too. Nothing waits on a GPU.
        """

    def advance(
        self, seq_lens: object | None = None, max_seq_len: int | None = None, stream: object | None = None
    ) -> None:
        """
        The next draft step of window-only layers with one token a request, at seq_len - 1, in place: every tensor
        keeps its address, so that a loop of draft steps can be recorded as one CUDA graph.

        seq_lens: [R] int32, 0 for a request that sits out; None: each other request is one token longer.
        max_seq_len: their upper bound; None: that of the step before.
        """

class ModelConfig:
    """
    A DeepSeek-V4 model as far as attention is concerned.

    model: "v4-flash", "v4-pro", "tiny", or the path of a config.json.

    Raises InvalidArgument naming a key, IoError.
    """

    def __init__(self, model: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_mtp_layers(self) -> int: ...
    @property
    def max_position(self) -> int: ...
    @property
    def compress_ratios(self) -> list[int]: ...
    def layer(self, index: int) -> dict:
        """
        The numbers of a layer, as AttentionLayer takes them; layers of multi-token prediction come last.
        """

    def rope_table(self, index: int, positions: int) -> object:
        """
        The rope table of a layer: [positions, 64] float32, cosines first, on the host, as an object with __dlpack__.
        """

class Checkpoint:
    """
    A checkpoint of DeepSeek-V4: a folder with config.json and safetensors files, or one file.
    Opening reads headers only.

    Raises IoError for files that are missing or damaged, InvalidArgument for another model.
    """

    def __init__(self, path: str) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def model(self) -> ModelConfig | None: ...
    def names(self) -> list[str]:
        """Names of all tensors."""

    def load_layer(
        self, index: int, tp_rank: int = 0, tp_size: int = 1, keep_fp8: bool = False, keep_nvfp4: bool = False
    ) -> dict:
        """
        Reads a layer, or what a tensor-parallel rank computes of it: a dict of config (as AttentionLayer takes it),
        tensors (by name, on the host, with __dlpack__), q_scale, kv_scale and compressed_kv_scale (or None).

        keep_fp8: E4M3 weights stay as they are where a layer can take them; else they become bfloat16.
        keep_nvfp4: the same of NVFP4 weights, which are uint8 with two codes a byte.

        Raises InvalidArgument that lists missing, unknown and misshaped tensors; IoError for damaged contents.
        """

class KvPool:
    """
    The memory of the caches of a list of layers, in equal blocks, and who holds which.

    layers: the numbers of each layer, as AttentionLayer takes them.
    num_blocks: how many can be held; one more, block 0, nobody ever holds.
    draft_blocks: windows are kept one token longer, for a block of DSpark sees that much more.

    Raises InvalidArgument, Unsupported, MemoryError.
    """

    def __init__(
        self,
        layers: list,
        num_blocks: int,
        device: object = "cpu",
        cache_rows: str = "fp8_ds_mla",
        index_rows: str = "index_fp8",
        kv_scale: float = 1.0,
        draft_blocks: bool = False,
        stream: object | None = None,
    ) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def groups(self) -> list:
        """
        The cache groups: name, block_tokens (token p is in column p // block_tokens of a block table), window.
        """

    def cache(self, layer: int, role: str) -> Cache:
        """
        A layer's cache: role is "window", "compressed", "index", "state" or "index_state".
        """

    def group_of(self, layer: int, role: str) -> int:
        """
        The group whose block table a layer's cache uses; -1: the layer has no such cache.
        """

    def held(self, group: int) -> int:
        """Blocks that a group has."""

class RequestBlocks:
    """
    The blocks of one request in a pool: a table for each group. They go back to the pool with the
    object.
    """

    def __init__(self, pool: KvPool) -> None: ...
    def reserve(self, begin: int, end: int) -> bool:
        """
        Makes room for positions begin to end - 1, zeroed. False, and nothing changed, when the pool is too small.
        """

    def reserve_live(self, tokens: int) -> bool:
        """
        Makes room for what a request of so many computed positions needs to go on.
        """

    def slide(self, next_position: int) -> None:
        """Gives back what no query at next_position or later can see."""

    def clear(self) -> None:
        """Gives everything back."""

    def table(self, group: int) -> list[int]:
        """Block numbers, -1 where there is none."""

    @property
    def empty(self) -> bool: ...

def save_snapshot(blocks: RequestBlocks, tokens: int, note: bytes = ...) -> bytes: ...
def inspect_snapshot(snapshot: bytes) -> dict: ...
def load_snapshot(snapshot: bytes, blocks: RequestBlocks) -> dict: ...
def write_snapshot(path: str, snapshot: bytes) -> None: ...
def read_snapshot(path: str) -> bytes: ...

class PrefixKeys:
    """
    What a request's tokens are, in blocks of PrefixCache.unit, as a prefix cache compares them.
    """

    def __init__(self) -> None: ...
    def append_tokens(self, tokens: object, block_tokens: int) -> int:
        """
        Appends as many whole blocks as there are tokens for, and returns their number; the rest is ignored.
        tokens: [n] int32 on the host.
        """

    def append(self, words: Sequence[int]) -> None:
        """
        Appends a block by words that stand for its tokens, such as ids of a trace.
        """

    @property
    def blocks(self) -> int: ...

class PrefixCache:
    """
    Finds the blocks of prefixes that were computed before and lends them to requests
    (docs/prefix-caching.md).

    retention_interval: a prefix can end at each multiple of so many tokens, a multiple of unit.
    keep_prompt_end: and at the end of a prompt, rounded down to unit.

    Raises InvalidArgument.
    """

    def __init__(self, pool: KvPool, retention_interval: int = 512, keep_prompt_end: bool = True) -> None: ...
    @property
    def unit(self) -> int:
        """Tokens of a block of PrefixKeys."""

    def find(self, keys: PrefixKeys, max_tokens: int | None = None) -> int:
        """Tokens of the longest prefix that is there."""

    def adopt(self, keys: PrefixKeys, blocks: RequestBlocks, max_tokens: int | None = None) -> int:
        """
        Puts that prefix's blocks into a request that holds none, and returns its tokens: the first position to
        compute. max_tokens should leave one token.
        """

    def keep(self, keys: PrefixKeys, blocks: RequestBlocks, begin: int, end: int, prompt_tokens: int) -> None:
        """
        Keeps what the rule wants of positions begin to end - 1, whose rows were computed or queued, before
        RequestBlocks.slide gives their blocks back.
        """

    def make_room(self, free_blocks: int) -> bool:
        """
        Evicts what was used longest ago until the pool has so many free blocks. False, with nothing evicted, when
        requests hold too many.
        """

    def clear(self) -> None:
        """Gives everything up."""

    @property
    def stats(self) -> dict: ...

def write_case(path: str, op: str, params: str, tensors: dict) -> None: ...
def record_calls(folder: str) -> None: ...
def recorded_calls() -> int: ...
def run_program(arguments: Sequence[str]) -> int:
    """The smla program over a command line; returns its exit status."""
