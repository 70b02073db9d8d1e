#: title: DataLoader with workers, pinned memory and non_blocking copies
#: part: 1
#: row: loader_fork fork
#: row: loader_spawn spawn
import sys

import compat
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return torch.arange(i, i + 1024, dtype=torch.float32).square(), i


def main():
    torch.cuda.init()
    base = torch.ones(1024, device="cuda")  # CUDA is in use before the fork
    side, total = torch.cuda.Stream(), torch.zeros(1024, device="cuda", dtype=torch.float64)
    loader = DataLoader(Squares(), batch_size=32, num_workers=4, pin_memory=True, persistent_workers=True,
                        multiprocessing_context=sys.argv[1])
    for epoch in range(2):
        for x, i in loader:
            assert x.is_pinned() and i.is_pinned()
            with torch.cuda.stream(side):
                d = x.to("cuda", non_blocking=True)
                total += (d * base).double().sum(0)
        side.synchronize()
        compat.show(f"epoch{epoch}", total)


if __name__ == "__main__":
    main()
