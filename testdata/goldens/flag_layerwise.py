"""FlagEmbedding's layer-wise reranker: its model, the model's configuration, and what trains it. FlagEmbedding's packages import much that is not
needed for that (datasets, and what some version of transformers had): only the files that these are in are run."""

import importlib.util
import sys
import types
from pathlib import Path

import torch

flag = Path(importlib.util.find_spec("FlagEmbedding").submodule_search_locations[0])


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name, **names):
    module = types.ModuleType(name)
    module.__path__ = [str(flag.joinpath(*name.split(".")[1:]))]
    module.__dict__.update(names)
    sys.modules[name] = module


for end in ("", ".inference", ".inference.reranker", ".inference.reranker.decoder_only", ".inference.reranker.decoder_only.models", ".abc", ".abc.finetune"):
    package("FlagEmbedding" + end)
base = load("flag_base", flag / "abc" / "finetune" / "reranker" / "AbsModeling.py")
package("FlagEmbedding.abc.finetune.reranker", AbsRerankerModel=base.AbsRerankerModel, RerankerOutput=base.RerankerOutput)
CrossDecoderModel = load("flag_layerwise_modeling", flag / "finetune" / "reranker" / "decoder_only" / "layerwise" / "modeling.py").CrossDecoderModel

from FlagEmbedding.inference.reranker.decoder_only.models.configuration_minicpm_reranker import LayerWiseMiniCPMConfig
from FlagEmbedding.inference.reranker.decoder_only.models.modeling_minicpm_reranker import LayerWiseMiniCPMForCausalLM


def configure(**args):
    """A configuration as FlagEmbedding's code wants it: transformers 5 fills in a rope_scaling, and has no cache of the old kind."""
    config = LayerWiseMiniCPMConfig(**args)
    config.rope_theta, config.rope_scaling, config.use_cache = args.get("rope_theta", 10000.0), None, False
    config._attn_implementation = "eager"
    return config


def pad(rows, token=1):
    """Token ids padded on the left, as FlagEmbedding pads them, and their mask."""
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), token), torch.zeros(len(rows), longest, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) :], mask[i, longest - len(row) :] = torch.as_tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def trainer(model, groups):
    """FlagEmbedding's model in training, of so many groups, with the scores of all layers from start_layer on, which its loss is written for: asked for
    no cutoff_layers, as FlagEmbedding 1.4.2 asks it, the model gives those of the last layer alone."""
    peer = CrossDecoderModel(model, tokenizer=lambda *_, **__: {"input_ids": [0]}, train_batch_size=groups, start_layer=model.config.start_layer).train()
    forward, layers = model.forward, list(range(model.config.start_layer, model.config.num_hidden_layers + 1))
    with torch.no_grad():
        assert len(peer.encode(pad([[3, 4]]))) == 1, "asked for no layers, the model gives the scores of several"
    model.forward = lambda **args: forward(**args, cutoff_layers=layers)
    return peer
