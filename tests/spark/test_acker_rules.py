"""Storm's acker rules once more, on Spark: those scenarios that need no long wait."""

from __future__ import annotations

import pytest

from tests.scenarios import test_acker_rules as rules
from tests.spark.on_spark import SparkRunner


@pytest.fixture
def engine(spark, tmp_path):
    return SparkRunner(spark, tmp_path)


@pytest.fixture
def run(engine):
    return engine.run


test_j_n12_t1_a_second_ack_is_an_error_that_names_component_stream_and_tuple = (
    rules.test_j_n12_t1_a_second_ack_is_an_error_that_names_component_stream_and_tuple
)
test_k_n11_t2_an_anchored_emit_after_the_ack_is_an_error_and_never_an_early_ack = (
    rules.test_k_n11_t2_an_anchored_emit_after_the_ack_is_an_error_and_never_an_early_ack
)
test_l_a_bolt_that_fails_and_acks_a_tuple_has_failed_it_and_the_misuse_is_reported = (
    rules.test_l_a_bolt_that_fails_and_acks_a_tuple_has_failed_it_and_the_misuse_is_reported
)
test_n1_a_tree_that_is_acked_over_several_micro_batches_makes_one_ack = (
    rules.test_n1_a_tree_that_is_acked_over_several_micro_batches_makes_one_ack
)
test_n2_e_a_fail_that_travels_with_the_init_is_kept_and_its_first_reason_reported = (
    rules.test_n2_e_a_fail_that_travels_with_the_init_is_kept_and_its_first_reason_reported
)
test_n3_f_a_tuple_that_raises_after_its_ack_is_failed_although_every_edge_was_acked = (
    rules.test_n3_f_a_tuple_that_raises_after_its_ack_is_failed_although_every_edge_was_acked
)
test_n4_c_a_message_that_nobody_reads_is_acked_but_not_inside_emit = (
    rules.test_n4_c_a_message_that_nobody_reads_is_acked_but_not_inside_emit
)
test_n7_g_what_is_acked_after_the_fail_is_delivered_to_nobody = (
    rules.test_n7_g_what_is_acked_after_the_fail_is_delivered_to_nobody
)
test_n9_a_child_of_two_messages_decides_on_both = rules.test_n9_a_child_of_two_messages_decides_on_both
test_n14_without_a_message_id_no_verdict_is_delivered_and_nothing_is_open = (
    rules.test_n14_without_a_message_id_no_verdict_is_delivered_and_nothing_is_open
)
test_n15_o_one_message_id_emitted_twice_is_two_messages_with_two_verdicts = (
    rules.test_n15_o_one_message_id_emitted_twice_is_two_messages_with_two_verdicts
)
test_one_tuple_that_is_not_acked_keeps_its_message_from_being_acked = (
    rules.test_one_tuple_that_is_not_acked_keeps_its_message_from_being_acked
)
