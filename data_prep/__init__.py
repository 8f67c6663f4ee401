"""Raw text to pretraining shards: vocabulary, masking, pairs, and the files a trainer reads.

The package never imports torch nor `bert_ds`; its command is `bert-prep`.
"""
