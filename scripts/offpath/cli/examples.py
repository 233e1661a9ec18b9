"""Texts of `--help` beside the flags: the purpose of each group, and examples of groups and commands."""

from __future__ import annotations

from typing import Final

GROUPS: Final[dict[str, str]] = {
    "daemon": "run the daemon, or drain it",
    "config": "check a configuration, or print it",
    "helper": "serve kernels on a GPU's host",
    "kernel": "measure kernels",
    "migd": "serve MIG instances of a GPU's host",
    "mig": "list MIG instances, and apply layouts of them",
    "gpu": "check an NVIDIA GPU",
    "request": "submit, list, explain and cancel requests",
    "lease": "list leases, or propose moves",
    "controller": "run the controller of INA sharing, or print its status",
    "manager": "run the job manager, or print its status",
    "job": "submit, list, explain and cancel jobs",
    "ina": "print and change how training jobs share aggregation trees",
    "switch": "run an emulated switch (INA, in-network services)",
    "inc": "request functions that run on servers and switches",
}

EXAMPLES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("daemon",): (
        "offpath daemon run --config offpathd.toml",
        "offpath daemon drain --stop",
    ),
    ("daemon", "run"): (
        "offpath daemon run --config offpathd.toml",
        "offpath daemon run --config offpathd.toml --keep   # restart it when it dies",
        "offpath daemon run --config offpathd.toml --set leasing.lanes=3",
    ),
    ("daemon", "drain"): (
        "offpath daemon drain --stop   # finish what is accepted, then end",
        "offpath daemon drain --off    # accept requests again",
    ),
    ("doctor",): ("offpath doctor", "offpath doctor --host"),
    ("config",): ("offpath config check offpathd.toml", "offpath config show offpathd.toml --origin"),
    ("config", "check"): (
        "offpath config check offpathd.toml",
        "offpath config check offpathd.toml --reload   # could the running daemon load it?",
    ),
    ("config", "show"): ("offpath config show offpathd.toml --origin",),
    ("helper",): ("offpath helper run serve.py --emulate A100-40GB", "offpath helper reload"),
    ("helper", "run"): (
        "offpath helper run serve.py --emulate A100-40GB",
        "offpath helper run serve.py --emulate A100-40GB A100-40GB",
        "offpath helper run serve.py --emulate A100-40GB --host-channel zmq --daemon tcp://dpu:7700"
        " --key host.key --server-key dpu.pub",
    ),
    ("helper", "reload"): (
        "offpath helper reload   # after a change of serve.py; leases and running requests stay",
        "offpath helper reload --name vision --json",
    ),
    ("migd",): ("offpath migd run --config /etc/offpath/migd.toml",),
    ("migd", "run"): (
        "offpath migd run --config /etc/offpath/migd.toml",
        "offpath migd run --gpu all=mig --uid offpath-helper",
    ),
    ("mig",): ("offpath mig show", "offpath mig apply -f mig.yaml -c all-1g.5gb"),
    ("mig", "show"): ("offpath mig show --profiles",),
    ("mig", "plan"): ("offpath mig plan -f mig.yaml -c all-1g.5gb   # changes nothing",),
    ("mig", "assert"): ("offpath mig assert -f mig.yaml -c all-1g.5gb",),
    ("mig", "apply"): ("offpath mig apply -f mig.yaml -c all-1g.5gb",),
    ("kernel",): ("offpath kernel profile serve.py --input float32:8,3,224,224",),
    ("kernel", "profile"): (
        "offpath kernel profile serve.py --kernel classify --input float32:8,3,224,224",
        "offpath kernel profile serve.py --input tokens.npy --write demands.json   # for `helper run --demands`",
    ),
    ("gpu",): ("offpath gpu check --quick",),
    ("gpu", "check"): ("offpath gpu check --json > gpu.json", "offpath gpu check --only 1,5,12"),
    ("keys",): ("offpath keys host-a --directory /etc/offpath/zmq",),
    ("request",): ("offpath request list", "offpath request explain 1/42"),
    ("request", "submit"): (
        "offpath request submit classify --array images.npy --tenant vision --token-file vision.token",
        "offpath request submit echo --text hello --tenant vision --token-file vision.token --budget-ms 500",
    ),
    ("request", "list"): ("offpath request list", "offpath request list --tenant vision --state expired"),
    ("request", "show"): ("offpath request show 1/42",),
    ("request", "explain"): ("offpath request explain 1/42   # why does it wait, why did it fail?",),
    ("request", "cancel"): ("offpath request cancel 1/42",),
    ("lease",): ("offpath lease list", "offpath lease plan"),
    ("lease", "list"): ("offpath lease list --tenant vision",),
    ("lease", "plan"): ("offpath lease plan   # proposes only",),
    ("controller",): ("offpath controller run --config controller.toml", "offpath controller status"),
    ("controller", "run"): ("offpath controller run --config controller.toml",),
    ("controller", "status"): ("offpath controller status --json",),
    ("manager",): ("offpath manager run --config manager.toml", "offpath manager status"),
    ("manager", "run"): ("offpath manager run --config manager.toml",),
    ("manager", "status"): ("offpath manager status --json",),
    ("job", "whatif"): ("offpath job whatif --gpus 8 --model vgg16",),
    ("job",): ("offpath job submit resnet --hosts 4", "offpath job explain resnet"),
    ("job", "submit"): (
        "offpath job submit night --gpus 8 --model vgg16 -- python3 train.py --epochs 90",
        "offpath job submit resnet --hosts 4 --ranks-per-host 2   # the controller chooses the hosts",
        "offpath job submit resnet --on h1,h2",
    ),
    ("job", "list"): ("offpath job list --json",),
    ("job", "show"): ("offpath job show resnet",),
    ("job", "explain"): ("offpath job explain resnet   # why has it this tree, or none?",),
    ("job", "cancel"): ("offpath job cancel resnet",),
    ("ina",): ("offpath ina trees", "offpath ina mode shared"),
    ("ina", "groups"): ("offpath ina groups",),
    ("ina", "trees"): ("offpath ina trees --json",),
    ("ina", "leases"): ("offpath ina leases",),
    ("ina", "mode"): ("offpath ina mode          # print it", "offpath ina mode shared   # change it"),
    ("ina", "hosts"): ("offpath ina hosts", "offpath ina hosts --release h1"),
    ("replay",): (
        "offpath replay /run/offpath/journal",
        "offpath replay /run/offpath/journal --list",
    ),
    ("whatif",): (
        "offpath whatif /run/offpath/journal --policy best-fit",
        "offpath whatif jobs.csv --gpus 4:A100-40GB",
    ),
    ("place",): (
        "offpath place topology.conf --busy 'n[001-064,080]' --hosts 24",
        "offpath place fat-tree:16 --busy 60% --hosts 20 --json --picture hosts.svg",
    ),
    ("trees",): ("offpath trees fat-tree:16 --jobs jobs.txt --per switch --exact --picture trees.svg",),
    ("switch",): ("offpath switch run --name s1 --listen tcp://0.0.0.0:7800 --control unix:///run/offpath/s1.sock",),
    ("switch", "run"): (
        "offpath switch run --name s1 --listen tcp://0.0.0.0:7800 --control unix:///run/offpath/s1.sock",
    ),
    ("switch", "statistical"): (
        "offpath switch statistical --listen tcp://127.0.0.1:7801 --servers n1,n2,n3 --aggregators 64",
    ),
    ("switch", "inc"): ("offpath switch inc --name leaf0 --control /run/offpath/leaf0.sock --features p4-14,sharp",),
    ("inc",): ("offpath inc submit shop.toml", "offpath inc explain shop"),
    ("inc", "submit"): ("offpath inc submit shop.toml", "offpath inc submit shop.toml --name shop-2 --json"),
    ("inc", "list"): ("offpath inc list --ended",),
    ("inc", "show"): ("offpath inc show shop   # where each task is, and its address",),
    ("inc", "explain"): ("offpath inc explain shop   # why servers and no switches?",),
    ("inc", "cancel"): ("offpath inc cancel shop",),
    ("inc", "templates"): ("offpath inc templates",),
    ("inc", "serve"): ("offpath inc serve store --listen 127.0.0.1:21000   # needs OFFPATH_INC_TOKEN",),
    ("top",): ("offpath top", "offpath top --once --json"),
    ("errors",): ("offpath errors daemon_full", "offpath errors 73"),
    ("completion",): (
        "source <(offpath completion bash)",
        "offpath completion zsh > ~/.zfunc/_offpath   # a folder of fpath",
        "offpath completion fish > ~/.config/fish/completions/offpath.fish",
    ),
    ("demo", "hire"): ("offpath demo hire", "offpath demo hire --quick --engine slurm --json > hire.json"),
    ("demo", "netpack"): ("offpath demo netpack --quick", "offpath demo netpack --engine local --json"),
    ("demo",): ("offpath demo --jobs 100", "offpath demo ina --blocks 1"),
    ("demo", "ina"): ("offpath demo ina --blocks 1",),
    ("simulate",): (
        "offpath simulate",
        "offpath simulate conspirator --quick",
        "offpath simulate conspirator --table 4",
        "offpath simulate mina --figure table1 --seeds 1",
        "offpath simulate netpack --quick --json",
        "offpath simulate hire --quick --json",
        "offpath simulate venn --quick --json",
    ),
    ("bench",): ("offpath bench", "offpath bench request-path --quick", "offpath bench hire --quick --json"),
}


def epilog(words: tuple[str, ...]) -> str:
    """The examples of a group or command, for the end of `--help`."""
    return "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[words])])
