"""Published settings of linear transfer to Places205 and iNaturalist 2018, with a frozen backbone.

They work with any labeled data set.
"""

from selfsight.evals.classifier_settings import ClassifierSettings, sgd, step_schedule


def _linear(
    source: str, lr: float, *steps: float, epochs: int, nesterov: bool
) -> ClassifierSettings:
    head = sgd(lr, step_schedule(*steps), weight_decay=1e-4, nesterov=nesterov)
    return ClassifierSettings(source=source, epochs=epochs, batch_size=256, head=head)


def _msbreg(epochs: int) -> ClassifierSettings:
    """The learning rate drops at a third and at two thirds ("with equally spaced intervals")."""
    source = "MSBReg (arXiv:2207.03552), supplement: learning rate drops twice, equally spaced"
    steps = (epochs / 3, 2 * epochs / 3)
    return _linear(source, 0.2, *steps, epochs=epochs, nesterov=False)


VISSL = "VISSL (arXiv:1905.01235), linear_image_classification; decay 1e-4 for ResNet-50"

PUBLISHED: dict[str, ClassifierSettings] = {
    "msbreg_places205": _msbreg(28),
    "msbreg_inaturalist18": _msbreg(84),
    # VISSL classifies feature maps pooled to 8,192 numbers; here the backbone's features are used.
    "vissl_places205": _linear(VISSL, 0.01, 4.0, 8.0, 12.0, epochs=14, nesterov=True),
    "vissl_inaturalist18": _linear(VISSL, 0.01, 24.0, 48.0, 72.0, epochs=84, nesterov=True),
}
