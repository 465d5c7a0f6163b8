"""The report on an import: how every weight was used."""

from dataclasses import dataclass

from selfsight.data.eval_transform import EvalTransform


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """Origin of each weight, and the image size and statistics that the network expects."""

    spec: str  # argument of load_backbone
    network: str
    writer: str = ""  # project that wrote the file, if its names show it
    matched: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # name in the file, name in the network
    unused: tuple[tuple[str, str], ...] = ()  # name in the file, reason
    missing: tuple[tuple[str, str], ...] = ()  # name in the network, why it is harmless
    notes: tuple[str, ...] = ()
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: int = 3
    license: str | None = None  # of published weights, if their library states it
    native: EvalTransform | None = None  # what timm or torchvision says for this network

    def table(self) -> list[dict[str, str]]:
        """Return one row for every name of the file and of the network."""

        def row(status: str, file: str, network: str, reason: str = "") -> dict[str, str]:
            return {"status": status, "file": file, "network": network, "reason": reason}

        return [
            *(row("matched", name, name) for name in self.matched),
            *(row("renamed", file, network) for file, network in self.renamed),
            *(row("unused", name, "", reason) for name, reason in self.unused),
            *(row("missing", "", name, reason) for name, reason in self.missing),
        ]

    def summary(self) -> str:
        """Summarize the import in one sentence."""
        origin = f"{self.network} from {self.spec}"
        if self.writer:
            origin += f" (looks like {self.writer})"
        loaded = len(self.matched) + len(self.renamed)
        renamed = f" ({len(self.renamed)} renamed)" if self.renamed else ""
        counts = [f"{loaded} weights loaded{renamed}"]
        reasons = [reason for _, reason in self.unused]
        detail = ", ".join(f"{r} {reasons.count(r)}" for r in dict.fromkeys(reasons))
        if self.unused:
            counts.append(f"{len(self.unused)} unused ({detail})")
        if self.missing:
            counts.append(f"{len(self.missing)} missing but harmless")
        return f"{origin}: {', '.join(counts)}." + "".join(f" {note}" for note in self.notes)
