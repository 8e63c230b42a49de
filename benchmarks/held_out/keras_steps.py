"""Steps of models of Keras applications, on its JAX backend."""

import os
from typing import Any

import jax
import optax

from benchmarks.held_out.step import (
  Step,
  cross_entropy,
  floats,
  integers,
  make_step,
)


def mobilenet_v3() -> Step:
  """Builds MobileNetV3Small on 16 images of 96 by 96, SGD with momentum."""
  return application("MobileNetV3Small", images=16, side=96)


def application(name: str, *, images: int, side: int) -> Step:
  """Builds a step of one of Keras' applications, SGD with momentum.

  Args:
    name: Of the application.
    images: How many there are in a batch.
    side: Their height and width.

  Raises:
    RuntimeError: If Keras runs on another backend already.
  """
  os.environ.setdefault("KERAS_BACKEND", "jax")
  import keras

  if keras.backend.backend() != "jax":
    raise RuntimeError("Keras must run on JAX: set KERAS_BACKEND=jax.")
  keras.utils.set_random_seed(0)
  # Keras' annotations do not know of None.
  applications: Any = keras.applications
  net = getattr(applications, name)(
    input_shape=(side, side, 3),
    weights=None,
    classes=10,
    classifier_activation=None,
  )
  optimizer = optax.sgd(0.01, momentum=0.9)

  def loss(weights: Any, others: Any, images: jax.Array, labels: jax.Array):
    logits, others = net.stateless_call(weights, others, images, training=True)
    return cross_entropy(logits, labels), others

  def train_step(variables: Any, opt_state: Any, *batch: jax.Array) -> Any:
    weights, others = variables
    differentiate = jax.value_and_grad(loss, has_aux=True)
    (value, others), gradients = differentiate(weights, others, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state, weights)
    return (optax.apply_updates(weights, updates), others), opt_state, value

  def init(key: jax.Array) -> tuple[Any, Any]:
    del key  # Keras has drawn its weights.
    weights = [variable.value for variable in net.trainable_variables]
    others = [variable.value for variable in net.non_trainable_variables]
    return (weights, others), optimizer.init(weights)

  batch = [floats(images, side, side, 3), integers(images)]
  return make_step(train_step, init, batch, num_classes=10)
