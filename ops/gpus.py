"""What NVIDIA's driver says about this host's GPUs, and which profile fits them."""

from dataclasses import dataclass

from ops.commands import Commands

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
# A card sold with 24 GB reports a little less: 24,576 MiB on a 3090, less with ECC.
_DUAL_MIN_MIB = 22 * 1024
_DUAL = 2
# CUDA 13 needs this driver branch (CUDA 13.0 release notes, table 3).
CUDA_13_DRIVER = 580


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: memory in MiB, driver as the version's text."""

    name: str
    memory_mib: int
    driver: str

    @property
    def driver_branch(self) -> int:
        return int(self.driver.split(".")[0])


def find_gpus(commands: Commands) -> list[Gpu]:
    """The host's GPUs; empty where there is no driver, it does not answer, or it knows none."""
    result = commands.run(_QUERY, timeout=30)
    if not result.ok:
        return []
    return [gpu for line in result.out.splitlines() if (gpu := _gpu(line))]


def fitting_profile(gpus: list[Gpu]) -> str:
    """The shipped profile for these GPUs: both cards of a pair with 22 GiB or more, else one card."""
    large = [gpu for gpu in gpus if gpu.memory_mib >= _DUAL_MIN_MIB]
    return "dual-3090-bf16" if len(large) >= _DUAL else "single-3090-awq"


def _gpu(line: str) -> Gpu | None:
    fields = [part.strip() for part in line.rsplit(",", 2)]
    try:
        name, memory, driver = fields
        return Gpu(name, int(memory), driver) if driver[:1].isdigit() else None
    except ValueError:
        return None
