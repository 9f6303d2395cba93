set -e
NNODES=2
TP=2
MODEL="
    --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 \
    --num-attention-heads 16 --kv-channels 16
    --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear
    --position-embedding-type rope --rotary-base 10000 --untie-embeddings-and-output-weights
    --vocab-size 102400 --make-vocab-size-divisible-by 3200"
MODEL+=" --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816"
MODEL+=" --moe-layer-freq ([0]+[1]*26) --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.001 --moe-grouped-gemm"
PARALLEL="--tensor-model-parallel-size=$TP --expert-model-parallel-size=8 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"
TRAIN='--seq-length 4096 --micro-batch-size 1 --global-batch-size 512 --train-samples 51200 --bf16 --attention-backend flash --cross-entropy-loss-fusion'
CMD="torchrun --nnodes $NNODES --nproc-per-node 8 pretrain_gpt.py $MODEL $PARALLEL $TRAIN"
echo $CMD
srun -N $NNODES bash -c "$CMD"
