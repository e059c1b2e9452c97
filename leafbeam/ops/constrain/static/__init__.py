"""STATIC (Su et al., 2026): the trie as a stacked CSR transition matrix with bit-packed dense first levels."""
