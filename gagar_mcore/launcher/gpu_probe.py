"""Prints what PyTorch sees, JSON: its version, the CUDA it was built for, and each GPU's name, capability, free, total bytes."""

import json

import torch


def main() -> None:
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        devices.append((properties.name, properties.major, properties.minor, free, total))
    print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": devices}))


if __name__ == "__main__":
    main()
