"""Hierarchical gate: a gate over groups, and one within each (sparsely-gated MoE, appendix B)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Properties, Routing, Tensor, derive_seed
from multigate.model.gates.parts.registry import make

_SALT = 0x9E3779B9  # added to that of secondaries


@keras.saving.register_keras_serializable("multigate")
class Hierarchical(Gate):
    """E = G * M experts in G groups: w[g, m] = primary(x)_g * secondary_g(x)_m.

    It is exactly the product, so a zero of the primary skips a whole group.  Expert g * M + m is
    member m of group g.  Each level can be any other gate; each group has its own secondary.
    Every secondary sees every example, so its regularisers also count examples that the primary
    sends to other groups; the sum over the groups is reported.

    k is the primary's k times the secondaries' k.  In the static form both levels are static; in
    the per-example form a level is static if its settings say so.

    Args:
        num_selected: k, the product of the levels' own `num_selected` (1 by default).
        primary: settings of the gate over groups: {"name": ..., **options}.
        secondary: settings of the gates within the groups.
        num_groups: G, a divisor of E.
    """

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        primary: dict[str, Any] | None = None,
        secondary: dict[str, Any] | None = None,
        num_groups: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option(
            "num_groups",
            num_groups,
            num_groups >= 1 and num_experts % num_groups == 0,
            f"a divisor of num_experts={num_experts}",
        )
        self.num_groups = num_groups
        self.primary_settings = self._settings("primary", primary)
        self.secondary_settings = self._settings("secondary", secondary)
        self.primary = self._make("primary", self.primary_settings, num_groups)
        self.secondaries = [
            self._make(f"secondary_{g}", self.secondary_settings, num_experts // num_groups, _SALT)
            for g in range(num_groups)
        ]
        self.reads_ids = any(gate.reads_ids for gate in (self.primary, *self.secondaries))
        product = self.primary.num_selected * self.secondaries[0].num_selected
        self.check_option(
            "num_selected",
            num_selected,
            num_selected == product,
            f"{self.primary.num_selected} * {self.secondaries[0].num_selected} = {product}, "
            "the primary's k times the secondary's",
        )

    def _settings(self, level: str, settings: dict[str, Any] | None) -> dict[str, Any]:
        """Check the settings of a level and set whether it is static."""
        if not isinstance(settings, dict) or "name" not in settings:
            raise ValueError(
                f"{level}: Hierarchical expected settings of a gate, {{'name': ..., **options}}, "
                f"received {settings!r}"
            )
        settings = {"static": self.static} | settings
        if self.static and not settings["static"]:
            raise ValueError(
                f"{level}: a static Hierarchical expected static levels, received {settings!r}"
            )
        if settings["name"] == "sampled":
            raise ValueError(
                f"{level}: Hierarchical expected a gate that learns through its weights; received "
                "'sampled', which learns through the loss of the expert that it draws"
            )
        return settings

    def _make(self, label: str, settings: dict[str, Any], size: int, salt: int = 0) -> Gate:
        """Make the gate of one level, over `size` groups or members."""
        options = {"seed": derive_seed(self.seed, label), "dtype": self.dtype_policy} | settings
        if options["name"] == "hash":
            # With the same hash on both levels, a group would use only some of its members.
            options["salt"] = (options.get("salt", 0) + salt) % 2**32
        name = options.pop("name")
        return make(name, num_experts=size, **options)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Build both levels."""
        for gate in (self.primary, *self.secondaries):
            gate.build(input_shape)

    @property
    def properties(self) -> Properties:
        """The product guarantees what both levels guarantee."""
        levels = self.primary.properties, self.secondaries[0].properties
        return Properties(
            static=self.static,
            sparse_in_training=all(p.sparse_in_training for p in levels),
            sparse_at_inference=all(p.sparse_at_inference for p in levels),
            batch_dependent=any(p.batch_dependent for p in levels),
            normalised=all(p.normalised for p in levels),
            straight_through=any(p.straight_through for p in levels),
        )

    def harden(self) -> None:
        """Harden both levels."""
        super().harden()
        for gate in (self.primary, *self.secondaries):
            gate.harden()

    def route(self, x: Tensor, training: bool, ids: Tensor | None) -> Routing:
        """Weights (B, E), or (E,); losses and diagnostics under `primary/` and `secondary/`."""
        ops = keras.ops
        primary = self.primary(x, training=training, ids=ids)
        secondaries = [gate(x, training=training, ids=ids) for gate in self.secondaries]
        groups = ops.expand_dims(primary.weights, -1)  # (B, G, 1), or (G, 1)
        members = ops.stack([s.weights for s in secondaries], axis=-2)  # (B, G, M), or (G, M)
        product = groups * members
        if len(product.shape) == 3:
            weights = ops.reshape(product, (-1, self.num_experts))  # (B, E)
        else:
            weights = ops.reshape(product, (self.num_experts,))
        if not self.static and len(weights.shape) == 1:  # two static levels
            weights = ops.broadcast_to(weights, (ops.shape(x)[0], self.num_experts))
        losses = {f"primary/{name}": value for name, value in primary.losses.items()}
        for name in secondaries[0].losses:
            losses[f"secondary/{name}"] = sum(s.losses[name] for s in secondaries)
        diagnostics = {f"primary/{name}": v for name, v in primary.diagnostics.items()}
        for name in secondaries[0].diagnostics:
            values = ops.stack([s.diagnostics[name] for s in secondaries])
            diagnostics[f"secondary/{name}"] = ops.mean(values, axis=0)
        return Routing(weights, losses, diagnostics)

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "primary": self.primary_settings,
            "secondary": self.secondary_settings,
            "num_groups": self.num_groups,
        }
