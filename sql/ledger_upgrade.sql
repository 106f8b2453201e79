ALTER TABLE $table$on_cluster
    ADD COLUMN IF NOT EXISTS `offset` Int64 COMMENT 'cut: where the chunk ends; backward_step: the offset of the event' AFTER `batch`,
    ADD COLUMN IF NOT EXISTS `claim_number` UInt64 COMMENT 'the claim under which the entry was written, counted from 1; 0: by a task, or by a version without such numbers' AFTER `offset`,
    ADD COLUMN IF NOT EXISTS `fact` String COMMENT 'claim and facts: the fields that have no column of their own, JSON' AFTER `claim_number`,
    ADD COLUMN IF NOT EXISTS `attempt` UInt32 DEFAULT toUInt32OrZero(details) COMMENT 'intent: how many earlier batches overlap the range' AFTER `chunk_bytes`,
    MODIFY ORDER BY (stream, entry, topic_id, partition, start_offset, end_offset, batch, offset, claim_number, fact)
