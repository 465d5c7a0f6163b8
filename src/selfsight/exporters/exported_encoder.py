"""What is exported, and the code that the exports for all libraries share."""

from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from torch import Tensor, nn

from selfsight.data.decoders.scientific_images import is_photo
from selfsight.data.eval_transform import EvalTransform
from selfsight.exporters.network_shape import (
    LibraryNet,
    NetworkShape,
    OtherNet,
    ResNetShape,
    ViTShape,
)
from selfsight.run_files.json_files import replace_file

CLASSES = "classes.json"
READ_CLASSES = f'json.loads(Path(folder, "{CLASSES}").read_text("utf-8"))'
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's
WEIGHTS = "model.safetensors"


class ExportedHead(NamedTuple):
    """A linear layer after the network, whose softmax is the confidence of each class."""

    linear: nn.Linear
    class_names: tuple[str, ...]

    def weights(self, name: str) -> dict[str, Tensor]:
        """The weights, as those of a layer of this name."""
        parts = {"weight": self.linear.weight, "bias": self.linear.bias}
        return {f"{name}.{part}": w.detach().cpu().contiguous() for part, w in parts.items()}


class ExportedEncoder(NamedTuple):
    """A network with its shape, its weights on the CPU, and the transform of its images."""

    network: nn.Module
    shape: NetworkShape
    weights: dict[str, Tensor]
    transform: EvalTransform
    head: ExportedHead | None = None  # of a classifier

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for an encoder alone."""
        return 0 if self.head is None else len(self.head.class_names)

    def head_weights(self, name: str) -> dict[str, Tensor]:
        """The weights of the head as those of a layer of this name; none for an encoder alone."""
        return {} if self.head is None else self.head.weights(name)

    @property
    def has_photos(self) -> bool:
        """Whether its images are photographs, which every library opens and transforms."""
        return is_photo(self.transform.channels, self.transform.dtype)

    @property
    def image_import(self) -> str:
        """The lines that import what opens an image."""
        return "from PIL import Image" if self.has_photos else "import numpy as np\nimport torch"

    @property
    def class_import(self) -> str:
        """The first lines, if the names of classes are read."""
        return "" if self.head is None else "import json\nfrom pathlib import Path\n"

    def output_lines(
        self, result: str, *, softmax: str = ".softmax(dim=1)", names: str = READ_CLASSES
    ) -> str:
        """The lines that assign the features that `result` computes, or predict from its logits."""
        if self.head is None:
            return f"features = {result}"
        return (
            f"classes = {names}\nprobabilities = {result}{softmax}\n"
            "label = classes[int(probabilities[0].argmax())]"
        )

    @property
    def image_line(self) -> str:
        """The line that opens an image."""
        channels = self.transform.channels
        if not self.has_photos:
            shape = f"[H, W, {channels}] of {self.transform.dtype}"
            return f'image = np.load("image.npy")  # {shape}, from any file'
        return f'image = Image.open("photo.jpg").convert("{MODES[channels]}")'

    def transform_lines(self, photo_lines: str) -> str:
        """The lines that define `transform`: the library's own, or ours for other images."""
        if self.has_photos:
            return photo_lines
        transform, (mean, std) = self.transform, self.statistics
        resize = f"({transform.resize}, {transform.resize})"
        if transform.keep_aspect:
            resize = f"[int({transform.resize} * side / min(x.shape[2:])) for side in x.shape[2:]]"
        rounded = "" if transform.dtype == "float32" else ".round()"
        end = transform.size
        return (
            f"low, high = {list(transform.low)}, {list(transform.high)}\n"
            f"mean, std = {mean}, {std}\n"
            "low, high, mean, std = (\n"
            "    torch.tensor(v)[:, None, None] for v in (low, high, mean, std)\n)"
            "\n\n\ndef transform(image):\n"
            '    x = torch.from_numpy(image.astype("float32")).permute(2, 0, 1)[None]\n'
            f"    size = {resize}\n"
            f'    how = {{"mode": "{transform.interpolation}", "antialias": True}}\n'
            f"    x = torch.nn.functional.interpolate(x, size, **how)[0]{rounded}\n"
            f"    top, left = (round((side - {end}) / 2) for side in size)\n"
            f"    x = x[:, top : top + {end}, left : left + {end}]\n"
            "    return ((x - low) / (high - low) - mean) / std\n\n"
        )

    @property
    def crop_steps(self) -> str:
        """torchvision's steps from an image to the bytes of its crop, bit-equal to ours."""
        size = self.transform.resize
        sides = f"{size}" if self.transform.keep_aspect else f"({size}, {size})"
        how = ", interpolation=v2.InterpolationMode.BICUBIC"
        how = how if self.transform.interpolation == "bicubic" else ""
        return f"v2.PILToTensor(), v2.Resize({sides}{how}), v2.CenterCrop({self.transform.size})"

    @property
    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and std of each channel."""
        mean, std = self.transform.mean, self.transform.std
        times = self.transform.channels if len(mean) == 1 else 1
        return list(mean) * times, list(std) * times


def find_shape_gap(shape: NetworkShape, library: str) -> str | None:
    """Say why torchvision or timm cannot build this network; None if it can.

    Another stem is no obstacle, since a line or two replace it.
    """
    if isinstance(shape, OtherNet):
        return f"{library} has no {shape.name}"
    if isinstance(shape, LibraryNet) and shape.library != library:
        return f"it is {shape.library}'s {shape.name}, whose names {library} does not use"
    if isinstance(shape, ResNetShape) and not shape.is_plain:
        if shape.norm != "bn":
            return "its norm layers are not batch norm"
        if min(shape.depths) == 0:
            return f"it has three stages, and {library}'s ResNets four"
        return f"its first stage is {shape.width} channels wide, and {library}'s ResNets have 64"
    if isinstance(shape, ViTShape) and not shape.is_plain:
        return "its blocks have batch norm"
    return None


def save_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Write weights as a safetensors file, marked as torch's, which transformers requires."""
    with replace_file(folder / WEIGHTS) as file:
        file.write(safetensors.torch.save(weights, {"format": "pt"}))


def add_positions(encoder: ExportedEncoder) -> dict[str, Tensor]:
    """The weights with the positions of a ViT, which selfsight computes and others load."""
    from selfsight.backbones.vit import sincos_positions

    shape = encoder.shape
    if not isinstance(shape, ViTShape):
        return encoder.weights
    side = shape.image_size // shape.patch
    return encoder.weights | {"pos_embed": sincos_positions(side, side, shape.dim)}
