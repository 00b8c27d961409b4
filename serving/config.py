"""What the server is told to do."""

from dataclasses import dataclass, field

from headrace.engines import ConfigError, Serializable
from headrace.engines.llm.speculative_config import SpeculativeConfig
from headrace.engines.mesh import ParallelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(Serializable):
    """Everything that `headrace serve` can be told."""

    model: tuple[str, ...] = ()
    """Text models: hub ids, directories, .gguf files, pypi: specs or demo: short names."""
    whisper_model: tuple[str, ...] = ()
    """Whisper models, in the same forms."""
    served_model_name: tuple[str, ...] = ()
    """Names of the models in the API, first the text models, then the Whisper ones (default: their specs)."""
    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 11556
    """Port to listen at."""
    metrics_port: int | None = None
    """Port of the Prometheus metrics; -1 turns them off (default: port + 1)."""
    api_key_file: str | None = None
    """File with one API key a line; without it everyone who can connect is served."""
    tls_cert_file: str | None = None
    """Certificate chain (PEM) to serve https with."""
    tls_key_file: str | None = None
    """Private key (PEM) of the certificate."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Most bytes of a request's body, recordings included."""
    max_concurrent: int = 256
    """Most requests at a time; more are answered with 429 and Retry-After."""
    request_timeout_s: float = 600.0
    """Most seconds of a request; it is aborted then."""
    drain_timeout_s: float = 60.0
    """Most seconds that requests in flight may take to end after SIGTERM."""
    dtype: str = "bfloat16"
    """Precision of weights and activations: auto, bfloat16 or float32."""
    deterministic: bool = False
    """A text depends on nothing but its own request, whatever else is asked meanwhile; somewhat slower."""
    max_num_seqs: int | None = None
    """Most sequences that are decoded together (default: chosen by the engine)."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together (default: the model's own limit)."""

    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    """How tokens are proposed, for a text model to check several at once."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The devices that each text model is spread over; a Whisper model runs on the default one."""

    def __post_init__(self) -> None:
        self.speculative.require_model()
        if not self.model and not self.parallel.is_default:
            raise ConfigError(
                "parallel sizes and devices are of text models: give --model, or leave them out"
            )
        if not self.models:
            raise ConfigError("no model was given: add --model MODEL or --whisper-model MODEL")
        if self.served_model_name and len(self.served_model_name) != len(self.models):
            raise ConfigError(
                f"{len(self.served_model_name)} names for {len(self.models)} models: give a name for each"
            )
        if len(set(self.names)) != len(self.models):
            raise ConfigError("two models have one name: give --served-model-name with a name for each")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ConfigError("tls_cert_file and tls_key_file go together: give both or neither")
        for name in ("max_body_bytes", "max_concurrent", "request_timeout_s", "drain_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, wanted more than 0")

    @property
    def models(self) -> tuple[str, ...]:
        """The specs of all models, text models first."""
        return (*self.model, *self.whisper_model)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models in the API."""
        return self.served_model_name or self.models
