"""What a recipe will take: memory, communication, layouts that fit. Numbers alone: loads neither torch nor Megatron."""
