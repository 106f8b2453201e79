"""The decoders of one task, and what they have to know of the topic."""

from collections.abc import Callable
from dataclasses import replace

from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.pipeline.inputs import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.timings import Stages

__all__ = ["Decoders"]


class Decoders:
    """Creates each decoder when it is first used."""

    def __init__(self, make: Callable[[bool], BatchDecoder], target: Target, stages: Stages) -> None:
        """``make``: creates a decoder; its argument states whether before images are needed."""
        self._make, self._target, self._stages = make, target, stages
        self._made: dict[bool, BatchDecoder] = {}

    def prepared(self, records: Records, state: State, ports: Ports) -> tuple[BatchDecoder, State]:
        """The decoder for these records, and the state with the profile for decoding them."""
        profile = self._decoder(before=False).learn(records, state.profile, ports.history)
        decoder = self._decoder(before=self._target.wants_before(profile.key_columns))
        return decoder, replace(state, profile=profile)

    def _decoder(self, *, before: bool) -> BatchDecoder:
        if before not in self._made:
            self._made[before] = self._stages.decoder(self._make(before))
        return self._made[before]
