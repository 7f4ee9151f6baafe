"""Settings of a service that runs an engine."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import ByteSize, Field

from crossdock.engine.formats import KvDtype, MlaPrefill
from crossdock.engine.process import EngineConfig
from crossdock.errors import invalid_argument
from crossdock.fabric.settings import TransferSettings
from crossdock.models.cache import resolve
from crossdock.models.errors import ModelError
from crossdock.models.packed import WeightDtype, packed_directory


class EngineSettings(TransferSettings):
    """What prefill and decode instances take alike."""

    model: Annotated[
        str, Field(min_length=1, description="Hugging Face directory, or name of a fetched model.")
    ]
    weight_dtype: Annotated[
        WeightDtype, Field(description="How weights are held; auto: as the checkpoint has them.")
    ] = "auto"
    kv_dtype: Annotated[
        KvDtype,
        Field(description="Of the KV cache; fp8_ds_mla is for DeepSeek's latent attention."),
    ] = EngineConfig.kv_dtype
    tensor_parallel_size: Annotated[
        int, Field(ge=1, le=1, description="Ranks of a model; an engine computes all of it.")
    ] = 1
    mla_prefill: Annotated[
        MlaPrefill,
        Field(description="How prompts attend in latent attention; alike in all instances."),
    ] = EngineConfig.mla_prefill
    threads: Annotated[int, Field(ge=0, le=1_024, description="0: one for every usable core.")] = 0
    pin_threads: Annotated[
        bool, Field(description="Keep threads on their cores where there is one for each.")
    ] = True
    kernels: Literal["auto", "avx512", "avx2", "scalar"] = "auto"
    kv_memory: Annotated[
        ByteSize, Field(gt=0, description="Bytes of KV memory, such as 512MiB.")
    ] = ByteSize(EngineConfig.kv_memory_bytes)
    token_budget: Annotated[int, Field(ge=32, description="Tokens computed a step at most.")] = (
        EngineConfig.token_budget
    )
    chunked_prefill: Annotated[
        bool, Field(description="Cut prompts into chunks, so that others go on between them.")
    ] = True
    step_ms_max: Annotated[
        int, Field(ge=0, le=3_600_000, description="Chunks keep a step within it; 0: no bound.")
    ] = EngineConfig.step_ms_max
    num_sequences_max: Annotated[int, Field(ge=1, le=65_536)] = EngineConfig.num_sequences_max
    verify_handoff: Annotated[
        bool, Field(description="Check a checksum over the blocks of every handoff.")
    ] = False

    def engine_config(self, instance_id: str, *, store: bool) -> EngineConfig:
        """What the engine is started with. Raises when the model directory is no good."""
        try:
            directory = resolve(self.model)
        except ModelError as error:
            raise invalid_argument("model", str(error)) from error
        rdma = self.choose_rdma()
        return EngineConfig(
            model_directory=str(directory),
            instance_id=instance_id,
            weight_dtype=self.weight_dtype,
            weight_cache_directory=str(packed_directory()),
            kv_dtype=self.kv_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
            mla_prefill=self.mla_prefill,
            num_threads=self.threads or len(os.sched_getaffinity(0)),
            pin_threads=self.pin_threads,
            kernels=self.kernels,
            kv_memory_bytes=int(self.kv_memory),
            token_budget=self.token_budget,
            chunked_prefill=self.chunked_prefill,
            step_ms_max=self.step_ms_max,
            num_sequences_max=self.num_sequences_max,
            transport=self.transport,
            bind_interface=self.bind_interface,
            rdma_device=rdma.device,
            gid_index=rdma.gid_index,
            huge_pages=self.huge_pages,
            verify_handoff=self.verify_handoff,
            store=store,
        )
