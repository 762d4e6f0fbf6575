# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() in programs of others: their models and training loops as they are.

Models are made from configurations, with random weights; nothing is loaded. Skipped by package.
"""
import copy
import importlib.util
import io
import json
import logging
import os
import pickle
import tempfile
import threading
import unittest
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import support  # noqa: E402
from test_offload import BLOCK, HAS_TORCH, Run, offload, own_steps, stack_loss  # noqa: E402

if HAS_TORCH:
    import torch
    from test_offload import Stack
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    import stepwell.torch

    class Rows(Dataset):
        """Rows of tokens, as a causal language model is trained with."""

        def __init__(self, rows):
            torch.manual_seed(3)
            self.rows = tokens(rows)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, at):
            return {"input_ids": self.rows[at], "labels": self.rows[at]}


BLOCKS = 32  # of device memory: 2 MiB


def needs(*packages):
    """Skips a test where one of the packages is not installed."""
    def decorate(test):
        for package in ("torch",) + packages:
            if importlib.util.find_spec(package) is None:
                return unittest.skip(f"{package} is not installed (./dev test long)")(test)
        return test
    return decorate


def tokens(rows=2, length=12, vocabulary=96):
    return torch.randint(4, vocabulary, (rows, length))


# -- models of transformers: how to make one, and its loss ----------------------------------------

def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=32, n_embd=96, n_layer=3, n_head=4,
                                      bos_token_id=0, eos_token_id=1, pad_token_id=2))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=96, hidden_size=96, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1))


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM
    return MixtralForCausalLM(MixtralConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        output_router_logits=True, attention_dropout=0.1))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    return T5ForConditionalGeneration(T5Config(
        vocab_size=96, d_model=64, d_kv=16, d_ff=192, num_layers=2, num_heads=4,
        decoder_start_token_id=0))


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(
        hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192,
        image_size=32, patch_size=8, hidden_dropout_prob=0.1, num_labels=10))


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    return WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=96, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=20, max_target_positions=24, dropout=0.1,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3))


def resnet18():
    from transformers import ResNetConfig, ResNetForImageClassification
    return ResNetForImageClassification(ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 2, 2], layer_type="basic",
        num_labels=10))


def language_loss(model):
    data = tokens()
    return model(input_ids=data, labels=data).loss


def image_loss(model):
    return model(pixel_values=torch.randn(4, 3, 32, 32), labels=torch.arange(4)).loss


def speech_loss(model):
    return model(input_features=torch.randn(2, 16, 40), labels=tokens()).loss


def generated(model):
    """What it says, without and with sampling."""
    torch.manual_seed(5)
    data = tokens(2, 6)
    plain = model.generate(data, max_new_tokens=6, do_sample=False)
    sampled = model.generate(data, max_new_tokens=6, do_sample=True, top_k=20)
    return plain.tolist(), sampled.tolist()


class Loops(unittest.TestCase):
    def setUp(self):
        if HAS_TORCH:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")

    def beyond(self, model, blocks):
        """Fails where the device budget would hold parameters, gradients and states."""
        states = 3 * 4 * sum(p.numel() for p in model.parameters())
        self.assertGreater(states, blocks * BLOCK)

    def train(self, make, loss, blocks, between=None, optimizer=own_steps, **options):
        with Run(make, optimizer, blocks, **options) as run:
            if blocks:
                self.beyond(run.model, blocks)
            found = []
            for step in range(5):
                run.model.train()
                found.append(run.step(step, loss))
                if step in (1, 3):
                    run.model.eval()
                    with torch.no_grad():
                        torch.manual_seed(9)
                        found.append(loss(run.model).item())
                    if between:
                        found.append(between(run.model))
            return found


@needs()
class Vision(Loops):
    """torchvision's ResNet-18, with BatchNorm: 43 MiB of parameters.

    `./dev setup --torch` has no torchvision: docs/pytorch.md says which one goes with which torch.
    """

    def setUp(self):
        super().setUp()
        try:
            import torchvision.models
        except (ImportError, OSError, RuntimeError) as error:  # absent, or built for another torch
            self.skipTest(f"torchvision does not import: {error}")
        self.make = lambda: torchvision.models.resnet18(num_classes=10)

    @staticmethod
    def loss(model):
        return nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4))

    def same(self, optimizer):
        def train(blocks):
            return self.train(self.make, self.loss, blocks, self.running, optimizer,
                              nvme_blocks=4096)
        self.assertEqual(train(512), train(0))  # 32 MiB

    @staticmethod
    def running(model):
        """What BatchNorm found; parameters and states do not have it."""
        return [each.double().sum().item() for each in model.buffers()]

    def test_resnet18_has_the_losses_of_plain_torch_with_momentum(self):
        self.same(lambda every: torch.optim.SGD(every, 0.05, momentum=0.9, weight_decay=1e-4))

    def test_resnet18_has_the_losses_of_plain_torch_with_adamw(self):
        self.same(lambda every: torch.optim.AdamW(every, 1e-3))


@needs("transformers")
class Models(Loops):
    def same(self, make, loss, between=None):
        self.assertEqual(self.train(make, loss, BLOCKS, between),
                         self.train(make, loss, 0, between))

    def test_gpt2_has_the_losses_and_tokens_of_plain_torch(self):
        self.same(gpt2, language_loss, generated)

    def test_t5_has_the_losses_and_tokens_of_plain_torch(self):
        self.same(t5, language_loss, generated)

    def test_llama_has_the_losses_of_plain_torch(self):
        self.same(llama, language_loss)

    def test_mixtral_has_the_losses_of_plain_torch(self):
        self.same(mixtral, language_loss)

    def test_a_vision_transformer_has_the_losses_of_plain_torch(self):
        self.same(vit, image_loss)

    def test_whisper_has_the_losses_of_plain_torch(self):
        self.same(whisper, speech_loss)

    def test_resnet18_has_the_losses_of_plain_torch(self):
        self.same(resnet18, image_loss)


class Trainers(Loops):
    """The training loop is another project's."""

    def run_of(self, make, blocks):
        run = Run(make, own_steps, blocks)
        self.addCleanup(run.__exit__)
        if blocks:
            self.beyond(run.model, blocks)
        return run

    def same(self, train):
        plain = train(0)
        self.assertEqual(train(BLOCKS), plain)
        return plain

    @needs("transformers", "accelerate", "safetensors")
    def test_the_trainer_of_transformers_trains_saves_and_resumes(self):
        import transformers
        transformers.utils.logging.disable_progress_bar()

        def trained(blocks, directory, resume=None):
            run = self.run_of(gpt2, blocks)
            arguments = transformers.TrainingArguments(
                output_dir=directory, per_device_train_batch_size=2, max_steps=4, save_steps=2,
                gradient_accumulation_steps=2, max_grad_norm=0.5, logging_steps=1, report_to=[],
                use_cpu=True, disable_tqdm=True)
            schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda at: 1 / (1 + at))
            trainer = transformers.Trainer(
                model=run.model, args=arguments, train_dataset=Rows(32),
                optimizers=(run.optimizer, schedule))
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train(resume_from_checkpoint=resume)
            trainer.save_model(directory + "/last")
            saved = transformers.GPT2LMHeadModel.from_pretrained(directory + "/last").eval()
            torch.manual_seed(4)
            return [(each["loss"], each["grad_norm"], each["learning_rate"])
                    for each in trainer.state.log_history if "loss" in each] \
                + [language_loss(saved).item()]

        def train(blocks):
            with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                first = trained(blocks, directory)
                self.assertEqual(
                    trained(blocks, directory, directory + "/checkpoint-2"), first)
                return first
        self.assertEqual(len(self.same(train)), 5)

    @needs("transformers", "accelerate", "tqdm")
    def test_the_trainer_of_transformers_logs_bytes_and_waits_and_writes_the_report(self):
        import transformers
        transformers.utils.logging.disable_progress_bar()
        seen, reports = [], []

        class Watches(transformers.TrainerCallback):
            def on_log(self, args, state, control, logs=None, **_):
                seen.append(dict(logs))

            def on_save(self, *_, **__):
                reports.append(self.report())

            @staticmethod
            def report():
                with open(path) as file:
                    return json.load(file)["phases"][0]["steps"]

        def read(runtime):
            return sum(runtime.link_stats(link).bytes for link in (
                stepwell.Link.NVME_TO_DEVICE, stepwell.Link.NVME_TO_HOST))
        run = self.run_of(gpt2, BLOCKS)
        runtime = stepwell.torch.offloaded(run.model).runtime
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            path = os.path.join(directory, "report.json")
            trainer = transformers.Trainer(
                model=run.model, train_dataset=Rows(32), optimizers=(run.optimizer, None),
                args=transformers.TrainingArguments(
                    output_dir=directory, per_device_train_batch_size=2, max_steps=4,
                    save_steps=2, logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True),
                callbacks=[stepwell.torch.report_callback(path), Watches])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
            reports.append(Watches.report())
        self.assertEqual(len(seen), 3)
        keys = {"stepwell/read_bytes", "stepwell/written_bytes", "stepwell/wait_share"}
        for each, logged in zip(seen[:2], trainer.state.log_history):
            self.assertTrue(keys <= set(each))
            self.assertEqual({key: each[key] for key in keys}, {key: logged[key] for key in keys})
            self.assertGreater(each["stepwell/read_bytes"], 0)
            self.assertGreaterEqual(each["stepwell/wait_share"], 0)
            self.assertLess(each["stepwell/wait_share"], 1)
        self.assertFalse(keys & set(seen[2]))  # the summary at the end: no step since
        self.assertLessEqual(2 * sum(each["stepwell/read_bytes"] for each in seen[:2]),
                             read(runtime))
        self.assertEqual(reports, [2, 4, 4])

    @needs("transformers", "accelerate")
    def test_a_loop_of_accelerate_has_the_losses_of_plain_torch(self):
        from accelerate import Accelerator

        def train(blocks):
            run = self.run_of(gpt2, blocks)
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            model, optimizer, rows, schedule = accelerator.prepare(
                run.model, run.optimizer, DataLoader(Rows(12), batch_size=2),
                torch.optim.lr_scheduler.StepLR(run.optimizer, 1, 0.5))
            torch.manual_seed(4)
            found = []
            for batch in rows:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                        found.append(norm.item())
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                found.append(loss.item())
            return found
        self.same(train)

    @needs("transformers", "peft")
    def test_adapters_of_peft_train_and_their_base_is_never_written(self):
        from peft import LoraConfig, get_peft_model

        def make():
            return get_peft_model(gpt2(), LoraConfig(
                r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True))

        def train(blocks):
            with Run(make, lambda every: own_steps([p for p in every if p.requires_grad]),
                     blocks) as run:
                records = stepwell.torch.offloaded(run.model).records if blocks else []
                before = [record.tensor.info().version for record in records]
                found = [run.step(step, language_loss) for step in range(5)]
                for record, version in zip(records, before):
                    self.assertEqual(record.tensor.info().version != version,
                                     "lora_" in record.name, record.name)
                    self.assertEqual(record.gradient is not None, "lora_" in record.name)
                return found
        plain = train(0)
        self.assertEqual(train(16), plain)  # the base alone is larger

    @needs("transformers", "pytorch_lightning")
    def test_the_trainer_of_lightning_has_the_losses_of_plain_torch(self):
        import pytorch_lightning
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

        class Module(pytorch_lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = gpt2()
                self.losses = []

            def training_step(self, batch, at):
                loss = self.net(**batch).loss
                self.losses.append(loss.item())
                return loss

            def configure_optimizers(self):
                return self.made

        def train(blocks):
            run = self.run_of(Module, blocks)
            run.model.made = run.optimizer
            with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                trainer = pytorch_lightning.Trainer(
                    max_steps=4, accelerator="cpu", logger=False, enable_progress_bar=False,
                    default_root_dir=directory, gradient_clip_val=0.5, accumulate_grad_batches=2,
                    enable_model_summary=False)
                torch.manual_seed(7)
                trainer.fit(run.model, DataLoader(Rows(32), batch_size=2))
                trainer.save_checkpoint(directory + "/last.ckpt")
            return run.model.losses
        self.assertEqual(len(self.same(train)), 8)


@needs()
class Programs(Loops):
    def test_the_progress_of_a_loop_is_what_went_since_the_last_line(self):
        with Run(Stack, own_steps, 24) as run:
            made = stepwell.torch.offloaded(run.model)
            before = made.progress()
            self.assertEqual((before.steps, before.wait_share), (0, 0.0))
            run.step(0, stack_loss)
            run.step(1, stack_loss)
            made.runtime.drain()
            found = made.progress()
            links = [made.runtime.link_stats(link).bytes for link in (
                stepwell.Link.NVME_TO_DEVICE, stepwell.Link.DEVICE_TO_NVME)]
            again = made.progress()
            self.assertEqual((found.steps, again.steps, again.wait_share), (2, 0, 0.0))
            self.assertTrue(0 < found.wait_share < 1)
            for ours, first, last, total in (
                    (found.read_bytes, before.read_bytes, again.read_bytes, links[0]),
                    (found.written_bytes, before.written_bytes, again.written_bytes, links[1])):
                self.assertGreater(ours, 0)
                # What is read ahead for the next step may go on.
                self.assertTrue(total - last - 1 <= first + 2 * ours <= total)
            self.assertRegex(str(found), r"^\d+ [KM]iB read, \d+ [KM]iB written, \d+% waiting$")

    def test_an_lstm_has_the_losses_of_plain_torch(self):
        def make():
            return nn.LSTM(64, 64, 2, dropout=0.1, batch_first=True)

        def loss(model):
            return model(torch.randn(4, 10, 64))[0].pow(2).mean()
        self.assertEqual(self.train(make, loss, 12), self.train(make, loss, 0))

    def test_a_module_moved_to_the_device_it_is_on_stays_as_it_is(self):
        with Run(lambda: Stack(layers=12), own_steps, 24) as run:  # 6 MiB in 1.5
            self.assertIs(run.model.to(support.DEVICE), run.model)
            getattr(run.model.float(), support.DEVICE)()
            run.step(0, stack_loss)

    def test_assigned_data_is_what_is_trained_and_given_back(self):
        class Halves(nn.Linear):
            def forward(self, x):
                self.weight.data = self.weight.data * 0.5
                self.weight.data.add_(0.01)
                self.bias.data[0].mul_(1.5)
                return super().forward(x)

        def train(blocks):
            with Run(lambda: nn.Sequential(*(Halves(128, 128) for _ in range(12))), own_steps,
                     blocks) as run:
                found = []
                for step in range(3):
                    for parameter in run.model.parameters():
                        parameter.data = parameter.data * 0.9
                    found.append(run.step(step, stack_loss))
            return found + [p.sum().item() for p in run.model.parameters()]
        self.assertEqual(train(16), train(0))

    def test_workers_of_a_data_loader_may_fork_from_it(self):
        def train(blocks):
            with Run(Stack, own_steps, blocks) as run:
                found = []
                data = torch.utils.data.TensorDataset(
                    torch.linspace(-1, 1, 8 * 128).reshape(8, 128))
                for batch, in DataLoader(data, batch_size=2, num_workers=2,
                                         multiprocessing_context="fork"):
                    found.append(run.step(0, lambda model: model(batch).pow(2).mean()))
                return found
        self.assertEqual(train(24), train(0))

    def test_hooks_of_the_program_see_what_they_see_in_plain_torch(self):
        def train(blocks):
            with Run(Stack, own_steps, blocks) as run:
                seen = []
                layer = run.model.layers[2][1]
                layer.register_forward_pre_hook(
                    lambda module, _: seen.append(module.weight.sum().item()))
                layer.register_forward_hook(lambda module, given, result: result * 2)
                layer.register_full_backward_pre_hook(
                    lambda module, gradients: seen.append(gradients[0].sum().item()))
                layer.register_full_backward_hook(
                    lambda module, gradients, _: seen.append(
                        module.weight.norm().item() + gradients[0].norm().item()))
                layer.weight.register_hook(lambda gradient: gradient * 0.5)
                run.model.layers[4][1].weight.register_post_accumulate_grad_hook(
                    lambda parameter: seen.append(parameter.grad.norm().item()))
                return [run.step(step, stack_loss) for step in range(3)] + seen
        self.assertEqual(train(24), train(0))

    def test_two_threads_may_call_it(self):
        def call(blocks):
            with Run(Stack, own_steps, blocks) as run:
                run.model.eval()
                found = [[], []]
                both = threading.Barrier(2)

                def work(at):
                    data = torch.linspace(-1 - at, 1, 4 * 128, device=support.DEVICE).view(4, 128)
                    with torch.no_grad():
                        for _ in range(40):
                            both.wait(60)
                            try:
                                found[at].append(run.model(data).sum().item())
                            except BaseException:
                                both.abort()
                                raise
                threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual([len(each) for each in found], [40, 40])
                return found
        self.assertEqual(call(48), call(0))

    def test_an_interrupted_backward_gives_all_views_back(self):
        def train(blocks):
            with Run(Stack, own_steps, blocks) as run:
                run.interrupt_step(0)
                self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(True))
                if blocks:
                    runtime = stepwell.torch.offloaded(run.model).runtime
                    self.assertEqual(runtime.tier_stats("device").open_views, 0)
                return [run.step(step, stack_loss) for step in range(2)]
        self.assertEqual(train(24), train(0))

    @needs("transformers")
    def test_copies_are_plain_and_train_on_by_themselves(self):
        def saved(model):
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            return torch.load(file, weights_only=False)

        def step(model, optimizer, seed):
            torch.manual_seed(seed)
            loss = language_loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        def train(blocks):
            with Run(gpt2, own_steps, blocks) as run:
                found = [run.step(0, language_loss)]
                copies = [copy.deepcopy(run.model), saved(run.model),
                          pickle.loads(pickle.dumps(run.model))]
                for each in copies:
                    self.assertTrue(all(type(p) is nn.Parameter for p in each.parameters()))
                    self.assertIs(each.lm_head.weight, each.transformer.wte.weight)
                    optimizer = own_steps(each.parameters())
                    found += [step(each, optimizer, 1), step(each, optimizer, 2)]
                found += [run.step(seed, language_loss) for seed in (1, 2)]
            first = copies[0]  # outlives what it was copied from, and is offloaded in its turn
            optimizer = own_steps(first.parameters())
            found.append(step(first, optimizer, 3))
            if blocks:
                with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                    offload(first, optimizer, blocks, directory)
                    found.append(step(first, optimizer, 4))
                    stepwell.torch.offloaded(first).close()
            else:
                found.append(step(first, optimizer, 4))
            return found
        self.assertEqual(train(BLOCKS), train(0))


if __name__ == "__main__":
    unittest.main()
