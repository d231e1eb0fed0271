"""Networks: fully connected ones, and convolutions before them for images."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from implicitq.normalization import BatchNorm, column_sums
from implicitq.types import Image, Spec


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layer_on_both(
    last: bool, inputs: jax.Array, beside: jax.Array, weight: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A fully connected layer on `inputs` and `beside`, with ReLU unless it is the last; `beside` has no gradient.

    Differentiated by hand: the forward pass is one product, and the backward pass is over `inputs` alone. JAX would go
    back over zeros too, or need two products of half the size, which are slower.
    """
    return _forwards(last, inputs, beside, weight, bias)[0]


def _forwards(last: bool, inputs: jax.Array, beside: jax.Array, weight: jax.Array, bias: jax.Array) -> tuple[Any, Any]:
    outputs = jnp.concatenate([inputs, beside]) @ weight + bias[None]
    outputs = outputs if last else jax.nn.relu(outputs)
    here, there = outputs[: len(inputs)], outputs[len(inputs) :]
    return (here, there), (inputs, here, weight)


def _backwards(last: bool, given: Any, gradients: Any) -> tuple[jax.Array, ...]:
    inputs, here, weight = given
    gradient = gradients[0] if last else jnp.where(here > 0, gradients[0], 0.0)
    beside = jnp.zeros((len(gradients[1]), weight.shape[0]))
    return gradient @ weight.T, beside, inputs.T @ gradient, column_sums(gradient)


_layer_on_both.defvjp(_forwards, _backwards)


class MLP(eqx.Module):
    """FC-ReLU-...-FC. Weights start uniform in +-sqrt(3 / fan_in), biases at zero.

    With `batch_norm`, the inputs of every layer are normalised, those of the network included.
    """

    weights: tuple[jax.Array, ...]  # [inputs, outputs] each
    biases: tuple[jax.Array, ...]
    norms: tuple[BatchNorm, ...]  # one per layer, or none

    def __init__(self, sizes: Sequence[int], key: jax.Array, batch_norm: bool = False) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.weights = tuple(
            jax.random.uniform(k, (inputs, outputs), minval=-1.0, maxval=1.0) * math.sqrt(3 / inputs)
            for k, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )
        self.biases = tuple(jnp.zeros(outputs) for outputs in sizes[1:])
        self.norms = tuple(map(BatchNorm, sizes[:-1])) if batch_norm else ()

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[B, inputs] -> [B, outputs]; batches are normalised by the running statistics."""
        hidden = inputs
        for number in range(len(self.weights)):
            if self.norms:
                hidden = self.norms[number](hidden)
            hidden = self._layer(number, hidden)
        return hidden

    def train(self, inputs: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, MLP]:
        """The network on `inputs` and `beside`, as a loss sees it; no gradient flows through `beside`.

        With batch normalisation, both are normalised as one batch, and the network comes back with its running
        statistics moved towards those of the batch. [B, inputs], [C, inputs] -> [B, outputs], [C, outputs].
        """
        if not self.norms:
            return self(inputs), jax.lax.stop_gradient(self(beside)), self
        moved = []
        for number, norm in enumerate(self.norms):
            inputs, beside, norm = norm.train(inputs, beside)
            moved.append(norm)
            last = number == len(self.weights) - 1
            inputs, beside = _layer_on_both(last, inputs, beside, self.weights[number], self.biases[number])
        return inputs, jax.lax.stop_gradient(beside), eqx.tree_at(lambda network: network.norms, self, tuple(moved))

    def _layer(self, number: int, inputs: jax.Array) -> jax.Array:
        outputs = inputs @ self.weights[number] + self.biases[number][None]
        return outputs if number == len(self.weights) - 1 else jax.nn.relu(outputs)

    def rescaled(self, factors: jax.Array) -> MLP:
        """The network with its outputs multiplied by `factors` [outputs]."""
        last = self.weights[-1] * factors[None], self.biases[-1] * factors
        return eqx.tree_at(lambda network: (network.weights[-1], network.biases[-1]), self, last)

    @property
    def outputs(self) -> int:
        return self.biases[-1].size


class Torso(eqx.Module):
    """Convolutions over an image, each followed by ReLU. Weights start as those of `MLP`."""

    kernels: tuple[jax.Array, ...]  # [size, size, inputs, outputs] each
    biases: tuple[jax.Array, ...]
    image: Image = eqx.field(static=True)

    def __init__(self, image: Image, key: jax.Array) -> None:
        self.image = image
        layers, _ = _convolutions(image)
        shapes, channels = [], image.channels
        for outputs, size, _ in layers:
            shapes.append((size, size, channels, outputs))
            channels = outputs
        self.kernels = tuple(
            jax.random.uniform(k, shape, minval=-1.0, maxval=1.0) * math.sqrt(3 / math.prod(shape[:3]))
            for k, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)
        )
        self.biases = tuple(jnp.zeros(shape[3]) for shape in shapes)

    def __call__(self, observation: jax.Array) -> jax.Array:
        """[B, O] -> [B, features]."""
        height, width, channels, channels_first = self.image
        shape = (channels, height, width) if channels_first else (height, width, channels)
        hidden = observation.reshape(-1, *shape)
        if channels_first:
            hidden = jnp.moveaxis(hidden, 1, -1)
        layers, padding = _convolutions(self.image)
        for (_, _, stride), kernel, bias in zip(layers, self.kernels, self.biases, strict=True):
            hidden = jax.lax.conv_general_dilated(
                hidden, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            hidden = jax.nn.relu(hidden + bias[None, None, None])
        return hidden.reshape(observation.shape[0], torso_features(self.image))


def torso_features(image: Image) -> int:
    """Outputs of a `Torso`."""
    layers, padding = _convolutions(image)
    height, width = image.height, image.width
    for _, size, stride in layers:
        lost = size - 1 if padding == "VALID" else 0
        height, width = -(-(height - lost) // stride), -(-(width - lost) // stride)
    return height * width * layers[-1][0]


def _convolutions(image: Image) -> tuple[tuple[tuple[int, int, int], ...], str]:
    """Channels, size and stride of every layer, and the padding.

    Those of Mnih et al. 2015 ("Human-level control through deep reinforcement learning"); images of less than 36 pixels
    either way have smaller ones.
    """
    least = min(image.height, image.width)
    if least >= 36:
        return ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "VALID"
    return (((32, 3, 2), (64, 3, 2)) if least >= 16 else ((16, 3, 1), (32, 3, 2))), "SAME"


class ConvolutionalNetwork(eqx.Module):
    """A torso, then a fully connected network on its features. Only the latter has batch normalisation."""

    torso: Torso
    head: MLP

    def __init__(
        self, image: Image, hidden: Sequence[int], outputs: int, key: jax.Array, batch_norm: bool = False
    ) -> None:
        torso_key, head_key = jax.random.split(key)
        self.torso = Torso(image, torso_key)
        self.head = MLP((torso_features(image), *hidden, outputs), head_key, batch_norm)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return self.head(self.torso(inputs))

    def train(self, inputs: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, ConvolutionalNetwork]:
        """As `MLP.train`."""
        features = jax.lax.stop_gradient(self.torso(beside)) if beside.shape[0] else jnp.zeros((0, self._features))
        here, there, head = self.head.train(self.torso(inputs), features)
        return here, there, eqx.tree_at(lambda network: network.head, self, head)

    def rescaled(self, factors: jax.Array) -> ConvolutionalNetwork:
        """As `MLP.rescaled`."""
        return eqx.tree_at(lambda network: network.head, self, self.head.rescaled(factors))

    @property
    def outputs(self) -> int:
        return self.head.outputs

    @property
    def _features(self) -> int:
        return torso_features(self.torso.image)


Network = MLP | ConvolutionalNetwork


def network_for(spec: Spec, hidden: Sequence[int], outputs: int, key: jax.Array, batch_norm: bool = False) -> Network:
    """A network from observations to `outputs` numbers: [B, O] -> [B, outputs]."""
    if spec.image is None:
        return MLP((spec.observation_size, *hidden, outputs), key, batch_norm)
    return ConvolutionalNetwork(spec.image, hidden, outputs, key, batch_norm)


class StateValue(eqx.Module):
    """V(s)."""

    network: Network

    def __init__(self, spec: Spec, hidden: Sequence[int], key: jax.Array, batch_norm: bool = False) -> None:
        self.network = network_for(spec, hidden, 1, key, batch_norm)

    def __call__(self, observation: jax.Array) -> jax.Array:
        """[B, O] -> [B]."""
        return self.network(observation)[:, 0]

    def train(self, observation: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, StateValue]:
        """As `MLP.train`: [B, O], [C, O] -> [B], [C]."""
        here, there, network = self.network.train(observation, beside)
        return here[:, 0], there[:, 0], eqx.tree_at(lambda value: value.network, self, network)


class ActionValue(eqx.Module):
    """Q(s, a) of continuous actions; for images, they join the features after the torso."""

    network: MLP
    torso: Torso | None

    def __init__(self, spec: Spec, hidden: Sequence[int], key: jax.Array) -> None:
        self.torso = None if spec.image is None else Torso(spec.image, jax.random.fold_in(key, 1))
        features = spec.observation_size if spec.image is None else torso_features(spec.image)
        self.network = MLP((features + spec.action_dimensions, *hidden, 1), key)

    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """[B, O], [B, D] -> [B]."""
        features = observation if self.torso is None else self.torso(observation)
        return self.network(jnp.concatenate([features, action], axis=-1))[:, 0]


class TwinActionValue(eqx.Module):
    """Two independent Q(s, a): their minimum overestimates less."""

    first: ActionValue
    second: ActionValue

    def __init__(self, spec: Spec, hidden: Sequence[int], key: jax.Array) -> None:
        first_key, second_key = jax.random.split(key)
        self.first = ActionValue(spec, hidden, first_key)
        self.second = ActionValue(spec, hidden, second_key)

    def __call__(self, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.first(observation, action), self.second(observation, action)
