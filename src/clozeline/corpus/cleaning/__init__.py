"""cleaning"""
