"""Studies of recommendation quality: cold start, a dense retriever, SASRec, calibration."""
